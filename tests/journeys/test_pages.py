"""Pages about code of one's own and pages with figures, executed as they are written, in order, in an empty folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fspo.runs import load
from helpers.pages import DOCS, Reader, blocks


@pytest.mark.parametrize("page", ["clip-fraction.md", "vllm-correction.md"])
def test_figures_are_what_the_commands_print(page: str, tmp_path: Path) -> None:
    assert any(block.language == "text" for block in blocks(DOCS / page))
    Reader(tmp_path).follow(page)


@pytest.mark.slow
def test_from_python(tmp_path: Path) -> None:
    printed = Reader(tmp_path).follow("python.md")
    assert "held out:" in printed[1]
    assert [line.step for line in load(tmp_path / "runs" / "logged").metrics] == [1, 2]


@pytest.mark.slow
def test_own_reward(tmp_path: Path) -> None:
    printed = Reader(tmp_path).follow("own-reward.md")
    run = load(tmp_path / "runs" / "words")
    assert all(line.unscored == 0 for line in run.metrics)
    assert run.metrics[-1].reward is not None
    assert all(re.search(r"1\d prompts x 1: accuracy", text) for text in printed[-2:])


@pytest.mark.slow
def test_own_objective(tmp_path: Path) -> None:
    printed = Reader(tmp_path).follow("own-objective.md")
    assert "range of S" in printed[0]
    assert load(tmp_path / "runs" / "narrow").config["objective"] == {"name": "my_objective:Mine", "width": 0.2}
