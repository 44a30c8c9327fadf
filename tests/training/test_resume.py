"""A run that is killed, or interrupted, and resumed ends with the same bytes as one that was not."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from fspo.config import read
from fspo.runs import Metrics, Observer, Timing
from fspo.training.loop import train
from fspo.training.stopping import RunInterruptedError
from helpers.processes import fingerprint, fspo, start

STALE = ["rollout.staleness=1", "objective=fspo_adaptive", "rollout.dynamic=1", "checkpoint.every=1", "steps=8",
         "log.cosine=2"]  # fmt: skip
KILLS = 20


@pytest.mark.slow
@pytest.mark.timeout(1800)  # 41 processes, each of which imports torch: minutes on two quiet cores
def test_twenty_kills_at_random_moments(small: list[str], tmp_path: Path) -> None:
    """Each run is killed somewhere between its first and its last moment, then resumed to the end."""
    began = time.monotonic()
    fspo("train", *small, *STALE, "--out", str(tmp_path / "whole"), "--no-report")
    whole_time = time.monotonic() - began
    expected = fingerprint(tmp_path / "whole")
    draw = random.Random(0)
    killed = progressed = 0
    for attempt in range(KILLS):
        folder = tmp_path / f"killed-{attempt}"
        process = start("train", *small, *STALE, "--out", str(folder), "--no-report")
        # Past the imports, most of the time: there is nothing to break before.
        while not (folder / "run.json").exists() and process.poll() is None:
            time.sleep(0.005)
        time.sleep(draw.uniform(0, 0.25 * whole_time))
        process.kill()
        killed += process.wait() == -signal.SIGKILL
        progressed += any((folder / "checkpoints").glob("step-*"))
        fspo("train", "--out", str(folder), "--resume", "--no-report")
        assert fingerprint(folder) == expected, f"kill {attempt}"
    assert killed >= KILLS / 2, "most kills must hit a running process"
    assert progressed >= KILLS / 4, "some kills must come after a checkpoint"


@pytest.mark.slow
def test_a_run_killed_twice_after_a_checkpoint(small: list[str], tmp_path: Path) -> None:
    train(read(None, [*small, *STALE]), tmp_path / "whole")
    folder = tmp_path / "killed"
    for step in (2, 5):
        options = ["--resume"] if folder.exists() else [*small, *STALE]
        process = start("train", *options, "--out", str(folder), "--no-report")
        while not (folder / "checkpoints" / f"step-{step:06d}").exists():
            assert process.poll() is None
            time.sleep(0.005)
        process.kill()
        assert process.wait() == -signal.SIGKILL
    train(read(folder / "config.yaml", []), folder, resume=True)
    assert fingerprint(folder) == fingerprint(tmp_path / "whole")


@pytest.mark.slow
def test_ctrl_c_saves_and_says_how_to_go_on(small: list[str], tmp_path: Path) -> None:
    options = [*small, "steps=400", "checkpoint.every=1000", "eval.every=1000"]
    process = start("train", *options, "--out", str(tmp_path / "run"), "--no-report")
    while not (tmp_path / "run" / "metrics.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 130, text
    assert "--resume" in text
    steps = len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert 0 < steps < 400
    shorter = [o for o in options if not o.startswith("steps")] + [f"steps={steps + 2}"]
    fspo("train", *shorter, "--out", str(tmp_path / "run"), "--resume", "--no-report")
    fspo("train", *shorter, "--out", str(tmp_path / "whole"), "--no-report")
    whole, resumed = fingerprint(tmp_path / "whole"), fingerprint(tmp_path / "run")
    different = {name for name in whole if whole[name] != resumed.get(name)}
    assert different == set(), different


class InterruptAt(Observer):
    """Presses Ctrl-C during a step."""

    def __init__(self, step: int) -> None:
        self.at = step

    def step(self, metrics: Metrics, timing: Timing) -> None:
        if metrics.step == self.at:
            os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupted_step_is_finished_and_saved(small: list[str], tmp_path: Path) -> None:
    config = read(None, [*small, *STALE, "checkpoint.every=1000", "eval.every=1000"])
    with pytest.raises(RunInterruptedError, match="stopped after step 3"):
        train(config, tmp_path / "run", observer=InterruptAt(3))
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000003"]
    train(config, tmp_path / "run", resume=True)
    train(config, tmp_path / "whole")
    assert fingerprint(tmp_path / "run") == fingerprint(tmp_path / "whole")
