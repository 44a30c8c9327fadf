"""Run folders that somebody else made, or that hold what no run wrote: nothing is executed, lost or misread."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

import fspo
from fspo.api import export
from fspo.config import read
from fspo.report.run_page import write
from fspo.runs import Metrics, Observer, RunWarning, RunWriter, Timing, read_lines
from fspo.training import stopping
from fspo.training.loop import train
from fspo.training.stopping import RunInterruptedError
from helpers.processes import Command, fingerprint


@pytest.fixture(scope="module")
def made(small: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "run"
    train(read(None, [*small, "steps=3", "checkpoint={every: 1, keep: 2}"]), folder)
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A finished run of three steps with its last two checkpoints."""
    return Path(shutil.copytree(made, tmp_path / "run"))


def rewrite(run: Path, **changes: Any) -> None:
    values = yaml.safe_load((run / "config.yaml").read_text()) | changes
    (run / "config.yaml").write_text(yaml.safe_dump(values))


@pytest.mark.parametrize(
    "task",
    [
        {"name": "python", "function": "planted:reward", "path": "rows.jsonl"},
        {"name": "python:planted:reward", "path": "rows.jsonl"},
        [{"name": "sort"}, {"name": "python", "function": "planted:reward", "path": "rows.jsonl"}],
        [["name", "planted:Task"]],
        {"name": "planted:Task"},
        {"name": "code", "path": "rows.jsonl", "isolation": "limits"},
    ],
)
@pytest.mark.parametrize("place", ["task", "eval"])
def test_nothing_that_a_folder_names_is_executed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: Any, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "planted.py").write_text("open('imported', 'w')\ndef reward(*_): return 1.0\n")
    rows = [{"prompt": f"sort:{k}=", "tests": [{"input": "", "output": ""}]} for k in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rewrite(run, **{place: task if place == "task" else {"task": task}})
    for ask in (fspo.evaluate, fspo.sample):
        with pytest.raises(ValueError, match=r"names Python code to import .*: add --trust"):
            ask(run, prompts=2)
    write(run)
    fspo.audit(run)
    assert not (tmp_path / "imported").exists()


def test_code_that_a_model_brings_is_not_executed(run: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(run / "checkpoints" / "step-000003", tmp_path / "model"))
    (model / "checksums.json").unlink()
    config = json.loads((model / "config.json").read_text())
    config["auto_map"] = dict.fromkeys(("AutoConfig", "AutoModelForCausalLM"), "evil.Evil")
    config["model_type"] = "evil"
    (model / "config.json").write_text(json.dumps(config))
    (model / "evil.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    with pytest.raises(ValueError, match="cannot be loaded"):
        fspo.sample(model, ["ab"])
    assert not (tmp_path / "imported").exists()


def test_a_configuration_beside_a_model_is_not_a_run_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text("whatever: [this is]\n")
    assert len(fspo.sample("tiny:1x32", "sort:ba=", {"rollout": {"max_new_tokens": 4}})) == 1


def test_a_damaged_checkpoint_is_not_passed_over_in_silence(run: Path, command: Command, tmp_path: Path) -> None:
    newest = run / "checkpoints" / "step-000003"
    (newest / "model.safetensors").write_bytes(b"garbage")
    with pytest.warns(RunWarning, match="step-000003 is damaged .*: an older one is used"):
        fspo.sample(run, ["ab"])
    with pytest.raises(ValueError, match="step-000003 is damaged"):
        fspo.sample(newest, ["ab"])
    done = command("export", str(run), str(tmp_path / "model"))
    assert done.stderr.startswith("warning: the checkpoint")
    shutil.move(newest, tmp_path / "alone")
    done = command("eval", str(tmp_path / "alone"), check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "cannot be loaded (SafetensorError" in done.stderr


def test_files_that_no_run_wrote_are_kept(small: list[str], tmp_path: Path) -> None:
    (tmp_path / "samples.jsonl").write_text('{"prompt": "mine"}\n')
    with pytest.raises(ValueError, match=r"already holds a run \(it has samples.jsonl\): choose another folder"):
        train(read(None, small), tmp_path)
    assert (tmp_path / "samples.jsonl").read_text() == '{"prompt": "mine"}\n'


def test_lines_and_files_that_belong_to_no_step_do_not_stop_a_resumed_run(run: Path) -> None:
    whole = fingerprint(run)
    shutil.rmtree(run / "checkpoints" / "step-000003")
    for name in ("metrics", "samples"):
        with (run / f"{name}.jsonl").open("a") as file:
            file.write('{"step": "x"}\n{}\n[1]\n{"step": null}\nnot json\n{"step": 1' + "0" * 400 + "}\n")
    for name in ("step-abc.parquet", "step-.parquet", "notes.txt"):
        (run / "records" / name).write_bytes(b"x")
    train(read(run / "config.yaml", []), run, resume=True)
    for name in ("step-abc.parquet", "step-.parquet", "notes.txt"):
        (run / "records" / name).unlink()
    assert fingerprint(run) == whole


def test_a_run_cannot_be_resumed_to_fewer_steps_or_by_another_engine(run: Path) -> None:
    before = {name: (run / name).read_text() for name in ("config.yaml", "metrics.jsonl")}
    with pytest.raises(ValueError, match="steps = 2 is below the 3 steps"):
        fspo.train(read(run / "config.yaml", ["steps=2"]), run, resume=True)
    with pytest.raises(ValueError, match="is of the engine local, and trl cannot go on with it"):
        fspo.train(None, run, resume=True, engine="trl")
    RunWriter(run).describe(yaml.safe_load(before["config.yaml"]), engine="trl")
    with pytest.raises(ValueError, match="is of the engine trl, and local cannot go on with it: add --engine trl"):
        fspo.train(None, run, resume=True)
    assert {name: (run / name).read_text() for name in before} == before


def test_a_run_without_checkpoints_starts_again_with_a_word(run: Path) -> None:
    whole = fingerprint(run)
    shutil.rmtree(run / "checkpoints")

    warnings: list[str] = []

    class Listener(Observer):
        def warn(self, text: str) -> None:
            warnings.append(text)

    train(read(run / "config.yaml", []), run, resume=True, observer=Listener())
    assert any("starts again from its first step" in text for text in warnings)
    assert fingerprint(run) == whole


class Signals(Observer):
    """Sends signals to this process during the second step."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    def step(self, metrics: Metrics, timing: Timing) -> None:
        for number in self.numbers if metrics.step == 2 else ():
            os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    "numbers", [[signal.SIGTERM] * 2, [signal.SIGHUP, signal.SIGHUP, signal.SIGTERM], [signal.SIGINT] * 2]
)
def test_a_request_that_arrives_twice_still_saves(
    small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: list[int]
) -> None:
    monkeypatch.setattr(stopping, "ECHO", math.inf)
    with pytest.raises(RunInterruptedError, match="stopped after step 2"):
        train(read(None, [*small, "checkpoint.every=100"]), tmp_path / "run", observer=Signals(*numbers))
    assert (tmp_path / "run" / "checkpoints" / "step-000002").is_dir()


def test_a_second_ctrl_c_stops_at_once(small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "ECHO", -1.0)
    observer = Signals(signal.SIGINT, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(read(None, [*small, "checkpoint.every=100"]), tmp_path / "run", observer=observer)


def test_an_ignored_signal_stays_ignored(small: list[str], tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        train(read(None, [*small, "steps=3"]), tmp_path / "run", observer=Signals(signal.SIGHUP))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert len(read_lines(tmp_path / "run", Metrics)) == 3


CAPITALS = """
from typing import ClassVar
import fspo


class Capitals(fspo.Task):
    name: ClassVar[str] = "capitals"
    summary: ClassVar[str] = "prompts of which some cannot be asked"
    where: str = "eval"

    def size(self, split):
        return 50

    def example(self, split, index):
        text = "ABC" if self.where == "eval" == split else "abc"
        if self.where == "long" and split == "train" and index == 40:
            text = "a" * 40000
        return fspo.Example(text, "a", self.label, index)

    def score(self, example, completion):
        return 1.0
"""


@pytest.mark.parametrize(
    ("where", "sentence"), [("eval", "cannot encode 'ABC'"), ("long", "a prompt of 40000 tokens and")]
)
def test_prompts_that_the_model_cannot_take_are_found_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, sentence: str
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "capital_prompts.py").write_text(CAPITALS)
    settings = {"model": {"path": "tiny:1x32"}, "warmup": None, "processes": 1, "steps": 20, "eval": {"prompts": 8}}
    settings["rollout"] = {"prompts": 4, "group": 2, "max_new_tokens": 4}
    with pytest.raises(ValueError, match=sentence):
        fspo.train(settings | {"task": {"name": "capital_prompts:Capitals", "where": where}}, tmp_path / "run")
    run = fspo.train(
        settings | {"task": {"name": "capital_prompts:Capitals", "where": "none"}, "steps": 1}, tmp_path / "run"
    )
    assert run.metrics[-1].step == 1


def test_devices_and_pipes_in_a_folder_are_not_read(run: Path) -> None:
    """A test that fails by its time limit: reading one of these would not end."""
    for name in ("run.json", "timings.jsonl", "samples.jsonl"):
        (run / name).unlink()
    (run / "run.json").symlink_to("/dev/zero")
    (run / "samples.jsonl").symlink_to("/dev/zero")
    os.mkfifo(run / "timings.jsonl")
    os.mkfifo(run / "records" / "step-000009.parquet")
    newest = run / "checkpoints" / "step-000003" / "checksums.json"
    newest.write_text(json.dumps(json.loads(newest.read_text()) | {"../../../../../../../../dev/zero": "x"}))
    write(run)
    with pytest.warns(RunWarning, match="is damaged"):
        fspo.sample(run, ["ab"])


def test_links_are_not_exported(run: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("mine")
    (run / "checkpoints" / "step-000003" / "notes.txt").symlink_to(tmp_path / "secret")
    assert "model.safetensors" in os.listdir(export(run, tmp_path / "model"))
    assert "notes.txt" not in os.listdir(tmp_path / "model")


def test_force_takes_other_settings(run: Path) -> None:
    changed = read(run / "config.yaml", ["update.lr=0.001", "objective=gspo", "steps=4"])
    with pytest.raises(ValueError, match=r"would make this another run .*, or add --force"):
        fspo.train(changed, run, resume=True)
    resumed = fspo.train(changed, run, resume=True, force=True)
    assert {change.setting for change in resumed.facts.changes} == {"update.lr", "objective.name", "steps"}
