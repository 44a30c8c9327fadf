"""A run folder keeps its word: one writer, signals that save, checkpoints that are checked, disks that fill up."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fspo.config import read
from fspo.runs import Metrics, Observer, Timing, load, locked, read_lines
from fspo.runs.schema import Change
from fspo.training import checkpoint
from fspo.training.loop import train
from fspo.training.stopping import RunInterruptedError, RunWriteError
from helpers.processes import fingerprint


class Listener(Observer):
    """Keeps what a run says, and may send a signal to this process after a step."""

    def __init__(self, number: int | None = None) -> None:
        self.warnings: list[str] = []
        self.number = number

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def step(self, metrics: Metrics, timing: Timing) -> None:
        if self.number is not None and metrics.step == 3:
            os.kill(os.getpid(), self.number)


@pytest.fixture
def run(small: list[str], tmp_path: Path) -> Path:
    """A finished run with two checkpoints."""
    train(read(None, [*small, "steps=4", "checkpoint={every: 2, keep: 3}"]), tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_save_and_stop(small: list[str], tmp_path: Path, number: int) -> None:
    stale = ["rollout.staleness=1", "objective=fspo_adaptive", "log.cosine=2"]
    settings = [*small, *stale, "steps=5", "checkpoint.every=100"]
    before = signal.getsignal(number)
    with pytest.raises(RunInterruptedError) as stopped:
        train(read(None, settings), tmp_path / "run", observer=Listener(number))
    assert (stopped.value.step, stopped.value.signal_number) == (3, number)
    assert signal.getsignal(number) is before
    train(read(None, settings), tmp_path / "run", resume=True)
    train(read(None, settings), tmp_path / "whole")
    assert fingerprint(tmp_path / "run") == fingerprint(tmp_path / "whole")


def test_changed_settings_of_a_resumed_run_are_facts(run: Path) -> None:
    for steps in (5, 6):
        train(read(run / "config.yaml", [f"steps={steps}", "log.samples=1"]), run, resume=True)
    assert load(run).facts.changes == [
        Change(setting="steps", before=4, after=5),
        Change(setting="log.samples", before=4, after=1),
        Change(setting="steps", before=5, after=6),
    ]
    assert [m.step for m in read_lines(run, Metrics)] == [1, 2, 3, 4, 5, 6]


def test_one_process_at_a_time_writes_to_a_folder(run: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from fspo.runs import locked\n"
        "with locked(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    lines = (run / "metrics.jsonl").read_text()
    with pytest.raises(ValueError, match="another process is writing to"):
        train(read(run / "config.yaml", []), run, resume=True)
    assert (run / "metrics.jsonl").read_text() == lines
    process.kill()
    process.wait()
    with locked(run):  # a lock goes with its process
        pass


def test_a_failed_start_leaves_the_folder_free(small: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Exception, match="nowhere"):
        train(read(None, [*small, f"model.path={tmp_path / 'nowhere'}"]), folder)
    train(read(None, [*small, "steps=1"]), folder)
    assert len(read_lines(folder, Metrics)) == 1


@pytest.mark.parametrize("damage", ["flipped", "truncated", "missing", "no checksums"])
def test_a_damaged_checkpoint_is_named_and_the_older_one_used(run: Path, damage: str) -> None:
    whole = fingerprint(run)
    newest = run / "checkpoints" / "step-000004"
    file = newest / "optimizer.safetensors"
    content = bytearray(file.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    elif damage == "truncated":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "missing":
        (newest / "model.safetensors").unlink()
    else:
        (newest / checkpoint.CHECKSUMS).unlink()
    listener = Listener()
    train(read(run / "config.yaml", []), run, resume=True, observer=listener)
    assert len(listener.warnings) == 1
    assert "step-000004 is damaged" in listener.warnings[0]
    assert "an older one is used" in listener.warnings[0]
    assert fingerprint(run) == whole


def test_a_damaged_checkpoint_does_not_displace_the_one_written_after_it(run: Path) -> None:
    """With one checkpoint kept, and the run stopped again before it reaches the step of the damaged one."""
    (run / "checkpoints" / "step-000004" / "state.json").write_text("{")
    settings = ["checkpoint={every: 1, keep: 1}"]
    with pytest.raises(RunInterruptedError):
        train(read(run / "config.yaml", settings), run, resume=True, observer=Listener(signal.SIGTERM))
    assert checkpoint.latest(run / "checkpoints") == run / "checkpoints" / "step-000003"
    assert checkpoint.steps(run / "checkpoints") == [3]


def test_where_every_checkpoint_is_damaged_nothing_is_guessed(run: Path) -> None:
    for folder in (run / "checkpoints").glob("step-*"):
        (folder / "state.json").write_text("{")
    with pytest.raises(ValueError, match="there is no older one that is whole"):
        train(read(run / "config.yaml", []), run, resume=True)


def test_other_things_among_the_checkpoints_are_ignored(run: Path) -> None:
    folder = run / "checkpoints"
    (folder / "step-abc").mkdir()
    (folder / "step-000009.txt").write_text("x")
    (folder / "step-12").mkdir()
    (folder / "step-0000001").mkdir()
    (folder / "step-٠٠٠٠٠٥").mkdir()
    (folder / ".DS_Store").write_text("x")
    assert checkpoint.steps(folder) == [2, 4]
    assert checkpoint.latest(folder) == folder / "step-000004"


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system can only be mounted by root")
def test_a_full_disk_is_one_sentence_that_says_what_is_saved(small: list[str], tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)], capture_output=True)
    assert mounted.returncode == 0, mounted.stderr
    settings = [*small, "steps=60", "checkpoint={every: 1, keep: 1}", "log.samples=64"]
    try:
        with pytest.raises(
            RunWriteError, match=r"cannot be written \(No space left on device\); the run is saved up to"
        ):
            train(read(None, settings), disk / "run")
        saved = checkpoint.latest(disk / "run" / "checkpoints")
        assert saved is not None
        shutil.copytree(disk / "run", tmp_path / "run")
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    steps = checkpoint.steps(tmp_path / "run" / "checkpoints")[-1] + 1
    shorter = [s for s in settings if not s.startswith("steps=")] + [f"steps={steps}", "update.schedule=constant"]
    train(read(None, shorter), tmp_path / "run", resume=True)
    train(read(None, shorter), tmp_path / "whole")
    assert fingerprint(tmp_path / "run") == fingerprint(tmp_path / "whole")
