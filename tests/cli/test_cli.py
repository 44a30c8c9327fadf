"""The command as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.processes import Command, fspo


@pytest.mark.slow
def test_the_installed_command_trains_reports_and_evaluates(small: list[str], tmp_path: Path) -> None:
    """As processes of their own."""
    run = tmp_path / "run"
    assert "report.html" in fspo("train", *small, "--out", str(run)).stdout
    assert "pass@4" in fspo("eval", str(run), "--prompts", "20", "--samples", "4", "--temperature", "1").stdout
    assert fspo("sample", str(run), "--prompts", "2").stdout.count("sort:") == 2
    for arguments in (["train", "update.lrr=1"], ["eval", str(tmp_path)]):
        done = fspo(*arguments, check=False)
        assert done.returncode == 2
        assert done.stderr.startswith("error: ")


def test_train_report_eval_and_sample(command: Command, small: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert "report.html" in command("train", *small, "--out", str(run)).stdout
    assert "<svg" in (run / "report.html").read_text()
    found = command(
        "eval", str(run), "--prompts", "20", "--samples", "4", "--temperature", "1", "--json", str(tmp_path / "e")
    )
    assert "pass@4" in found.stdout
    row = json.loads((tmp_path / "e").read_text())
    assert row["prompts"] == 20
    assert row["interval"][0] <= row["accuracy"] <= row["interval"][1]
    assert command("sample", str(run), "--prompts", "2").stdout.count("sort:") == 2
    checkpoint = max((run / "checkpoints").iterdir())
    options = ["--prompts", "8", "--top-p", "0.9", "--temperature", "1"]
    assert "accuracy" in command("eval", str(checkpoint), *options).stdout


def test_warm_start_is_made_once(command: Command) -> None:
    options = ["model.path=tiny:1x32", "task={name: sort, n_min: 2, n_max: 3}", "rollout.max_new_tokens=6"]
    options += ["warmup.solved=0.05", "warmup.max_steps=150"]
    first = command("warmup", *options)
    assert "solved" in first.stderr
    folder = Path(first.stdout.strip())
    assert json.loads((folder / "warmup.json").read_text())["history"][-1]["solved"] >= 0.05
    second = command("warmup", *options)
    assert second.stdout == first.stdout
    assert "solved" not in second.stderr


def test_listings(command: Command) -> None:
    assert "fspo_adaptive" in command("methods").stdout
    assert "c_low" in command("methods", "fspo").stdout
    assert "reasoning_gym" in command("tasks").stdout


@pytest.mark.parametrize("arguments", [["train", "update.lrr=1"], ["methods", "gspoo"], ["eval", "."], ["report", "."]])
def test_mistakes_exit_with_two_and_one_sentence(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command(*arguments, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: "), done.stderr
    assert "Traceback" not in done.stderr


def test_resume_without_a_run_is_refused(command: Command, tmp_path: Path) -> None:
    done = command("train", "--out", str(tmp_path / "none"), "--resume", check=False)
    assert done.returncode == 2
    assert "there is no run to resume" in done.stderr


def test_python_m_fspo_is_the_command() -> None:
    assert "Usage: python -m fspo" in fspo("--help").stdout
