"""The dumps that trainers write, as tables with the columns that an audit reads; recognised by their columns.

| trainer | file | what it holds |
|---|---|---|
| prime-rl | token_exports/step_N/rank_R.jsonl | log-probs of trainer and sampler per token, mask, advantages |
| NeMo-RL | train_data_stepN.jsonl | the same, every value wrapped in a batch of one |
| slime | the .pt files of --save-debug-train-data | the same, as tensors |
| TRL | completions/completions_N.parquet | texts and rewards, no log-probs |
| verl | N.jsonl of trainer.rollout_data_dir | texts and scores, no log-probs |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

FILES = (
    "token_exports/step_*/rank_*.jsonl", "step_*/rank_*.jsonl", "train_data_step*.jsonl", "*/train_data_step*.jsonl",
    "completions/completions_*.parquet",
)  # fmt: skip
"""Where a folder has the dumps of a trainer."""


@dataclass(frozen=True)
class Dump:
    """A trainer's format: the columns by which it is recognised, and its table in the names of the audit."""

    trainer: str
    columns: frozenset[str]
    table: Callable[[pl.LazyFrame], pl.LazyFrame] = lambda frame: frame


def _prime_rl(frame: pl.LazyFrame) -> pl.LazyFrame:
    return frame.select(
        "loss_mask", "advantages", task="env_name", logprobs="trainer_logprobs",
        sampler_logprobs="inference_logprobs", is_masked="is_masked",
    )  # fmt: skip


def _nemo_rl(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Rows without a trained token are left out: their sample mask is 0."""
    wrapped = {
        "mask": "token_loss_mask", "advantages": "advantages", "reward": "rewards", "old_logprobs": "prev_logprobs",
        "sampler_logprobs": "generation_logprobs", "sample_mask": "sample_loss_mask",
    }  # fmt: skip
    table = frame.select(**{name: pl.col(column).list.first() for name, column in wrapped.items()})
    return table.filter((pl.col("sample_mask") > 0) & (pl.col("mask").list.max() > 0)).drop("sample_mask")


DUMPS = (
    Dump("prime-rl", frozenset({"trainer_logprobs", "inference_logprobs", "export_sequence_idx"}), _prime_rl),
    Dump("NeMo-RL", frozenset({"prev_logprobs", "generation_logprobs", "token_loss_mask", "idx"}), _nemo_rl),
    Dump("TRL", frozenset({"step", "prompt", "completion", "advantage"})),
    Dump("verl", frozenset({"input", "output", "gts", "score", "step"})),
)


def recognised(columns: Iterable[str]) -> Dump:
    """The dump that has these columns; a table of one's own stays as it is."""
    return next((dump for dump in DUMPS if dump.columns <= set(columns)), Dump("", frozenset()))


def slime(path: Path) -> pl.DataFrame:
    """The samples of a .pt file of slime; only tensors and plain values are loaded, never code."""
    try:
        import torch
    except ImportError:
        raise ValueError(f"{path} is read with torch, which is not installed: pip install torch") from None
    try:
        payload = torch.load(path, map_location="cpu", weights_only=True)
        samples = payload["samples"]
        rewards = payload.get("raw_reward")
        names = {
            "loss_masks": "mask", "log_probs": "old_logprobs", "rollout_log_probs": "sampler_logprobs",
            "advantages": "advantages", "truncated": "truncated",
        }  # fmt: skip
        table: dict[str, list[Any]] = {
            name: [_plain(sample[key]) for sample in samples]
            for key, name in names.items()
            if all(sample.get(key) is not None for sample in samples)
        }
        position = [sample.get("rollout_position", k) for k, sample in enumerate(samples)]
        if rewards is not None and all(isinstance(rewards[k], int | float) for k in position):
            table["reward"] = [float(rewards[k]) for k in position]
        return pl.DataFrame(table)
    except Exception as error:
        why = " ".join(str(error).split())[:120]
        raise ValueError(
            f"{path} is not a file of slime's --save-debug-train-data, format 2 ({type(error).__name__}: {why})"
        ) from None


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value
