"""A run folder: one writer, signals and kills that leave the same bytes, damage, full disks, and what is not loaded."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import yaml
from safetensors import SafetensorError

import fspo
from fspo.api import export
from fspo.config import read
from fspo.runs import Metrics, Observer, RunWarning, RunWriter, Timing, locked, read_lines
from fspo.training import checkpoint, stopping
from fspo.training.loop import train
from fspo.training.stopping import RunInterruptedError, RunWriteError, writing
from helpers.processes import Listener, fingerprint

STALE = ["rollout.staleness=1", "objective={name: fspo, clip_rate: 0.1, drift: bounded}", "log.cosine=2", "steps=5",
         "checkpoint.every=100"]  # fmt: skip


@pytest.fixture(scope="module")
def made(small: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "run"
    train(read(None, [*small, "steps=4", "checkpoint={every: 2, keep: 3}"]), folder)
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A finished run of four steps with checkpoints of the second and the last."""
    return Path(shutil.copytree(made, tmp_path / "run"))


@pytest.fixture(scope="module")
def stale(small: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a run that was not stopped leaves behind."""
    folder = tmp_path_factory.mktemp("stale") / "run"
    train(read(None, [*small, *STALE]), folder)
    return fingerprint(folder)


# --- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("numbers", [[signal.SIGTERM], [signal.SIGHUP, signal.SIGTERM], [signal.SIGINT] * 2])
def test_a_signal_saves_and_stops_also_where_it_arrives_twice(
    small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stale: dict[str, str], numbers: list[int]
) -> None:
    monkeypatch.setattr(stopping, "ECHO", math.inf)
    before = signal.getsignal(numbers[0])
    with pytest.raises(RunInterruptedError) as stopped:
        train(read(None, [*small, *STALE]), tmp_path / "run", observer=Listener(*numbers))
    assert (stopped.value.step, stopped.value.signal_number) == (3, numbers[0])
    assert signal.getsignal(numbers[0]) is before
    train(read(None, [*small, *STALE]), tmp_path / "run", resume=True)
    assert fingerprint(tmp_path / "run") == stale


def test_a_second_ctrl_c_stops_at_once(small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "ECHO", -1.0)
    with pytest.raises(KeyboardInterrupt):
        train(read(None, small), tmp_path / "run", observer=Listener(signal.SIGINT, signal.SIGINT))


def test_an_ignored_signal_stays_ignored(small: list[str], tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        train(read(None, [*small, "steps=4"]), tmp_path / "run", observer=Listener(signal.SIGHUP))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert len(read_lines(tmp_path / "run", Metrics)) == 4


# --- kills ------------------------------------------------------------------------------------------------------------


OFTEN = ["checkpoint.every=1", "steps=8"]
KILLS = 20


def killed(small: list[str], folder: Path, operation: int) -> subprocess.CompletedProcess[str]:
    """A run that ends itself by SIGKILL at this file operation in its folder."""
    command = [sys.executable, "-m", "helpers.killed_run", str(folder), str(operation), "train", *small, *STALE, *OFTEN]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [*command, "--out", str(folder), "--no-report"], capture_output=True, text=True, env=environment
    )


@pytest.mark.slow
@pytest.mark.timeout(12_000)  # 21 processes, each of which imports torch, and as many resumed runs
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


# --- one run per folder -----------------------------------------------------------------------------------------------


def test_some_settings_of_a_resumed_run_can_only_be_changed_by_force(run: Path) -> None:
    train(read(run / "config.yaml", ["steps=5", "log.samples=1"]), run, resume=True)
    changed = read(run / "config.yaml", ["update.lr=0.001", "objective=gspo", "steps=6"])
    with pytest.raises(ValueError, match=r"would make this another run .*, or add --force"):
        fspo.train(changed, run, resume=True)
    resumed = fspo.train(changed, run, resume=True, force=True)
    assert (resumed.objective["name"], resumed.config["log"]["samples"]) == ("gspo", 1)
    assert [m.step for m in read_lines(run, Metrics)] == [1, 2, 3, 4, 5, 6]


def test_a_run_cannot_be_resumed_to_fewer_steps_or_by_another_engine(run: Path) -> None:
    before = {name: (run / name).read_text() for name in ("config.yaml", "metrics.jsonl")}
    with pytest.raises(ValueError, match="steps = 2 is below the 4 steps"):
        fspo.train(read(run / "config.yaml", ["steps=2"]), run, resume=True)
    with pytest.raises(ValueError, match="is of the engine local, and trl cannot go on with it"):
        fspo.train(None, run, resume=True, engine="trl")
    RunWriter(run).describe(yaml.safe_load(before["config.yaml"]), engine="trl")
    with pytest.raises(ValueError, match="is of the engine trl, and local cannot go on with it: add --engine trl"):
        fspo.train(None, run, resume=True)
    assert {name: (run / name).read_text() for name in before} == before


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


def test_a_folder_is_not_overwritten_and_a_failed_start_leaves_it_free(small: list[str], tmp_path: Path) -> None:
    with pytest.raises(Exception, match="nowhere"):
        train(read(None, [*small, f"model.path={tmp_path / 'nowhere'}"]), tmp_path / "run")
    train(read(None, [*small, "steps=1"]), tmp_path / "run")
    with pytest.raises(ValueError, match=r"already holds a run .* add --resume to go on with it"):
        train(read(None, [*small, "steps=1"]), tmp_path / "run")
    (tmp_path / "samples.jsonl").write_text('{"prompt": "mine"}\n')
    with pytest.raises(ValueError, match=r"already holds a run \(it has samples.jsonl\): choose another folder"):
        train(read(None, small), tmp_path)
    assert (tmp_path / "samples.jsonl").read_text() == '{"prompt": "mine"}\n'


# --- checkpoints and disks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["flipped", "missing", "no checksums"])
def test_a_damaged_checkpoint_is_named_and_the_older_one_used(run: Path, damage: str) -> None:
    whole, newest = fingerprint(run), run / "checkpoints" / "step-000004"
    if damage == "flipped":
        content = bytearray((newest / "optimizer.safetensors").read_bytes())
        content[len(content) // 2] ^= 1
        (newest / "optimizer.safetensors").write_bytes(content)
    else:
        (newest / ("model.safetensors" if damage == "missing" else checkpoint.CHECKSUMS)).unlink()
    with pytest.warns(RunWarning, match="step-000004 is damaged .*: an older one is used"):
        fspo.evaluate(run, prompts=2)
    with pytest.raises(ValueError, match="step-000004 is damaged"):
        fspo.evaluate(newest, prompts=2)
    listener = Listener()
    train(read(run / "config.yaml", []), run, resume=True, observer=listener)
    (warning,) = listener.warnings
    assert "step-000004 is damaged" in warning
    assert fingerprint(run) == whole


def test_a_damaged_checkpoint_does_not_displace_the_one_written_after_it(run: Path) -> None:
    """With one checkpoint kept, and the run stopped again before it reaches the step of the damaged one."""
    (run / "checkpoints" / "step-000004" / "state.json").write_text("{")
    settings = ["checkpoint={every: 1, keep: 1}"]
    with pytest.raises(RunInterruptedError):
        train(read(run / "config.yaml", settings), run, resume=True, observer=Listener(signal.SIGTERM))
    for name in ("step-abc", "step-12", "step-000009.txt"):  # which are no checkpoints
        (run / "checkpoints" / name).mkdir()
    assert checkpoint.latest(run / "checkpoints") == run / "checkpoints" / "step-000003"
    assert checkpoint.steps(run / "checkpoints") == [3]
    (run / "checkpoints" / "step-000003" / "state.json").write_text("{")
    with pytest.raises(ValueError, match="there is no older one that is whole"):
        train(read(run / "config.yaml", []), run, resume=True)


def test_a_run_without_checkpoints_starts_again_with_a_word(run: Path) -> None:
    whole, listener = fingerprint(run), Listener()
    shutil.rmtree(run / "checkpoints")
    train(read(run / "config.yaml", []), run, resume=True, observer=listener)
    assert any("starts again from its first step" in text for text in listener.warnings)
    assert fingerprint(run) == whole


def test_a_full_disk_is_one_sentence_that_says_what_is_saved(run: Path, small: list[str], tmp_path: Path) -> None:
    class Full(Observer):
        """Puts a file of the run on a device on which every write finds the disk full."""

        def step(self, metrics: Metrics, timing: Timing) -> None:
            if metrics.step == 3:
                (tmp_path / "full" / "timings.jsonl").unlink()
                (tmp_path / "full" / "timings.jsonl").symlink_to("/dev/full")

    settings = read(run / "config.yaml", [])
    with pytest.raises(RunWriteError, match=r"cannot be written \(No space left on device\); .* saved up to step 2"):
        train(settings, tmp_path / "full", observer=Full())
    (tmp_path / "full" / "timings.jsonl").unlink()
    train(settings, tmp_path / "full", resume=True)
    assert fingerprint(tmp_path / "full") == fingerprint(run)


@pytest.mark.parametrize("kind", [SafetensorError, pl.exceptions.ComputeError])
def test_the_full_disk_of_a_library_in_another_language(tmp_path: Path, kind: type[Exception]) -> None:
    with pytest.raises(RunWriteError, match="nothing is saved yet"), writing(tmp_path):
        raise kind("Error while serializing: No space left on device (os error 28)")
    with pytest.raises(kind), writing(tmp_path):
        raise kind("something else")


# --- models -----------------------------------------------------------------------------------------------------------


def test_code_that_a_model_brings_is_not_executed(run: Path, tmp_path: Path) -> None:
    model = export(run, tmp_path / "model")
    config = json.loads((model / "config.json").read_text()) | {"model_type": "evil"}
    config["auto_map"] = dict.fromkeys(("AutoConfig", "AutoModelForCausalLM"), "evil.Evil")
    (model / "config.json").write_text(json.dumps(config))
    (model / "evil.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    with pytest.raises(ValueError, match="cannot be loaded"):
        fspo.evaluate(model, prompts=2)
    assert not (tmp_path / "imported").exists()


def test_a_configuration_beside_a_model_is_not_a_run_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text("whatever: [this is]\n")
    assert fspo.evaluate("tiny:1x32", {"rollout": {"max_new_tokens": 4}}, prompts=2).prompts == 2
