"""The pages about code of one's own, executed as they are written, in order, in an empty folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fspo.config import TrainConfig
from fspo.runs import load
from helpers.pages import SHELL, blocks, commands, saved_as

DOCS = Path(__file__).parents[2] / "docs"


def follow(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Save, run and check every block of a page; returns what the blocks printed."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    programs = folder / "bin"
    programs.mkdir()
    (programs / "fspo").write_text(f'#!/bin/sh\nexec {sys.executable} -m fspo "$@"\n')
    (programs / "fspo").chmod(0o755)
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "FSPO_CACHE": str(folder / "cache")}
    printed = []
    for block in blocks(DOCS / page):
        name = saved_as(block)
        if name is not None:
            (folder / name).write_text(block.text)
        elif block.language == "python":
            printed.append(_run([sys.executable, "-c", block.text], environment))
        elif block.language in SHELL:
            printed += [_run(["sh", "-c", command], environment) for command in commands(block.text)]
        elif block.language == "yaml":
            TrainConfig(**yaml.safe_load(block.text))
    return printed


@pytest.mark.slow
def test_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = follow("python.md", tmp_path, monkeypatch)
    assert "held out:" in printed[1]
    assert [line.step for line in load(tmp_path / "runs" / "logged").metrics] == [1, 2]


def _run(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_own_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = follow("own-task.md", tmp_path, monkeypatch)
    run = load(tmp_path / "runs" / "parity")
    assert run.config["task"] == {"name": "parity:Parity", "n_max": 6}
    assert [line.step for line in run.metrics] == [1, 2, 3, 4, 5, 6]
    assert all(line.unscored == 0 for line in run.metrics)
    assert "n_max" in printed[0]
    assert "64 prompts x 1: accuracy" in printed[3]
    assert printed[4].count("parity:") == 3
    assert printed[-1].startswith("{'name': 'parity:Parity', 'n_max': 6}\n0.")


@pytest.mark.slow
def test_own_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = follow("own-reward.md", tmp_path, monkeypatch)
    run = load(tmp_path / "runs" / "words")
    assert all(line.unscored == 0 for line in run.metrics)
    assert run.metrics[-1].reward is not None
    assert all(re.search(r"1\d prompts x 1: accuracy", text) for text in printed[-2:])


@pytest.mark.slow
def test_own_objective(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = follow("own-objective.md", tmp_path, monkeypatch)
    assert "range of S" in printed[0]
    assert load(tmp_path / "runs" / "narrow").config["objective"] == {"name": "my_objective:Mine", "width": 0.2}


@pytest.mark.slow
def test_own_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = follow("own-loop.md", tmp_path, monkeypatch)
    rewards = [float(number) for number in re.findall(r"reward (\d\.\d+)", printed[-1])]
    assert rewards[-1] > rewards[0] + 0.1  # after ten steps and after five
    assert json.loads((tmp_path / "objective.json").read_text())
    assert "LRE" in printed[-1]
