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
from helpers.processes import fingerprint

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
