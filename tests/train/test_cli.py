"""The command as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

from processes import fspo


def test_train_report_eval_and_sample(small: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = fspo("train", *small, "--out", str(run))
    assert "report.html" in done.stdout
    assert "<svg" in (run / "report.html").read_text()
    found = fspo(
        "eval", str(run), "--prompts", "20", "--samples", "4", "--temperature", "1", "--json", str(tmp_path / "e")
    )
    assert "pass@4" in found.stdout
    row = json.loads((tmp_path / "e").read_text())
    assert row["prompts"] == 20
    assert row["interval"][0] <= row["accuracy"] <= row["interval"][1]
    assert fspo("sample", str(run), "--prompts", "2").stdout.count("sort:") == 2
    checkpoint = max((run / "checkpoints").iterdir())
    assert "accuracy" in fspo("eval", str(checkpoint), "--prompts", "8", "--top-p", "0.9", "--temperature", "1").stdout


def test_warm_start_is_made_once(tmp_path: Path) -> None:
    options = ["model.path=tiny:1x32", "task={name: sort, n_min: 2, n_max: 3}", "rollout.max_new_tokens=6"]
    options += ["warmup.solved=0.05", "warmup.max_steps=150"]
    first = fspo("warmup", *options)
    assert "solved" in first.stderr
    folder = Path(first.stdout.strip())
    assert json.loads((folder / "warmup.json").read_text())["history"][-1]["solved"] >= 0.05
    second = fspo("warmup", *options)
    assert second.stdout == first.stdout
    assert "solved" not in second.stderr


def test_listings() -> None:
    assert "fspo_adaptive" in fspo("methods").stdout
    assert "c_low" in fspo("methods", "fspo").stdout
    assert "reasoning_gym" in fspo("tasks").stdout


def test_mistakes_exit_with_two_and_one_sentence(tmp_path: Path) -> None:
    for arguments in (
        ["train", "update.lrr=1"],
        ["methods", "gspoo"],
        ["eval", str(tmp_path)],
        ["report", str(tmp_path)],
    ):
        done = fspo(*arguments, check=False)
        assert done.returncode == 2, arguments
        assert done.stderr.startswith("error: "), done.stderr
        assert "Traceback" not in done.stderr
