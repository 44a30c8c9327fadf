"""A run that is killed, or interrupted, and resumed ends with the same bytes as one that was not."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fspo.config import read
from fspo.training.loop import train
from helpers.processes import fingerprint, fspo, lines, start

STALE = ["rollout.staleness=1", "objective=fspo_adaptive", "checkpoint.every=1", "steps=8",
         "log.cosine=2"]  # fmt: skip
KILLS = 20


def killed(small: list[str], folder: Path, operation: int) -> subprocess.CompletedProcess[str]:
    """A run that ends itself by SIGKILL at this file operation in its folder."""
    command = [sys.executable, "-m", "helpers.killed_run", str(folder), str(operation), "train", *small, *STALE]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [*command, "--out", str(folder), "--no-report"], capture_output=True, text=True, env=environment
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)  # 21 processes, each of which imports torch, and as many resumed runs
def test_twenty_kills(small: list[str], tmp_path: Path) -> None:
    """Each run is killed at a file operation between its first and its last one, then resumed to the end."""
    whole = killed(small, tmp_path / "whole", 0)
    operations = int(whole.stdout.rpartition("operations: ")[2])
    assert operations > KILLS, whole.stderr
    expected, draw = fingerprint(tmp_path / "whole"), random.Random(0)
    saved = []
    for operation in sorted(draw.sample(range(1, operations + 1), KILLS)):
        folder = tmp_path / f"killed-{operation}"
        assert killed(small, folder, operation).returncode == -signal.SIGKILL
        saved.append(any((folder / "checkpoints").glob("step-*")))
        train(read(folder / "config.yaml", []), folder, resume=True)
        assert fingerprint(folder) == expected, f"killed at operation {operation}"
    assert set(saved) == {False, True}, "some kills come before the first checkpoint, and some after"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_go_on(small: list[str], tmp_path: Path, number: signal.Signals) -> None:
    options = [*small, "steps=100000", "checkpoint.every=1000", "eval.every=1000"]
    process = start("train", *options, "--out", str(tmp_path / "run"), "--no-report")
    lines(tmp_path / "run" / "metrics.jsonl", 2, process)
    process.send_signal(number)
    text, _ = process.communicate(timeout=600)
    assert process.returncode == 128 + number, text
    assert "--resume" in text
    steps = len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert steps >= 2
    shorter = [o for o in options if not o.startswith("steps")] + [f"steps={steps + 2}"]
    fspo("train", *shorter, "--out", str(tmp_path / "run"), "--resume", "--no-report")
    fspo("train", *shorter, "--out", str(tmp_path / "whole"), "--no-report")
    whole, resumed = fingerprint(tmp_path / "whole"), fingerprint(tmp_path / "run")
    different = {name for name in whole if whole[name] != resumed.get(name)}
    assert different == set(), different
