"""The reward function of the end-to-end run: verl loads it by path."""

from __future__ import annotations

from typing import Any


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any) -> dict:
    """The share of digits in an answer: an untrained model gets some, and of every length."""
    digits = sum(character.isdigit() for character in solution_str) / max(1, len(solution_str))
    return {"score": digits, "acc": float(solution_str.startswith(ground_truth))}
