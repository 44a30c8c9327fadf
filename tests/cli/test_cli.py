"""The command as a user types it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from fspo import __version__, objectives, tasks
from fspo.config import read
from fspo.runs import load
from fspo.settings import Described, described
from fspo.text import visible
from fspo.training.warmup import warm_start
from helpers.processes import Command, fspo
from helpers.synthetic import make_run


def test_train_report_and_eval(command: Command, small: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert "report.html" in command("train", *small, "--out", str(run)).stdout
    assert "<svg" in (run / "report.html").read_text()
    options = ["--prompts", "20", "--samples", "4", "--show", "2"]
    shown = command("eval", str(run), *options, "--json", str(tmp_path / "e")).stdout
    assert "pass@4" in shown
    assert (shown.count("sort:"), shown.count("reward"), shown.count("tokens")) == (8, 8, 8)
    row = json.loads((tmp_path / "e").read_text())
    assert row["prompts"] == 20
    assert row["interval"][0] <= row["accuracy"] <= row["interval"][1]
    usual = json.loads(command("eval", str(run), "--json", "-").stdout)
    during = load(run).evaluations[-1].model_dump(mode="json")
    assert usual == {key: during[key] for key in usual}, "evaluated as during training, to the digit"
    checkpoint = max((run / "checkpoints").iterdir())
    assert "accuracy" in command("eval", str(checkpoint), "--prompts", "8").stdout


def test_a_warm_start_is_made_once() -> None:
    options = ["model.path=tiny:1x32", "task={name: sort, n_min: 2, n_max: 3}", "rollout.max_new_tokens=6"]
    config = read(None, [*options, "warmup.solved=0.05", "warmup.max_steps=150"])
    seen: list[float] = []
    folders = [
        warm_start(config, tasks.get(config.task), lambda done, total, solved: seen.append(solved)),
        warm_start(config, tasks.get(config.task), lambda *_: pytest.fail("it is made again")),
    ]
    assert folders[0] == folders[1]
    assert seen[-1] >= 0.05


def test_listings_describe_every_parameter(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its type, default, range and meaning."""
    monkeypatch.setenv("COLUMNS", "200")
    assert command("--version").stdout == f"fspo {__version__}\n"
    assert "fspo_gate" in command("methods").stdout
    assert "reasoning_gym" in command("tasks").stdout
    for kind, library in (("methods", objectives), ("tasks", tasks)):
        for name in library.names():
            shown = command(kind, name).stdout
            assert all(parameter in shown for parameter in library.get_class(name).model_fields), name
    rows = {row.name: row for row in described(objectives.get_class("fspo"))}
    meaning = objectives.get_class("fspo").model_fields["clip_rate"].description or ""
    assert rows["clip_rate"] == Described("clip_rate", "float | null", "null", "> 0, < 0.5", meaning)
    assert (rows["kl"].type, rows["kl.coef"].default) == ("table | null", "required")


@pytest.mark.parametrize("model", ["no/where", "not a name", "./no/such/folder", "nowhere.gguf"])
def test_a_model_that_is_nowhere_is_one_sentence(command: Command, model: str) -> None:
    done = command("eval", model, check=False)
    assert done.returncode == 2
    assert re.match("error: (there is no|the model .* cannot be loaded)", done.stderr)
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "--out", "none", "--resume"], "there is no run to resume"),
        (["report", "weights"], "is not a run folder"),
        (["train", "--out", "a-file"], "a-file cannot be used (File exists)"),
        (["train", "--out", "a-file/run"], "a-file/run cannot be used (Not a directory)"),
        (["train", "model.device=banana", "--out", "run"], "model.device = 'banana' cannot be used"),
        (["train", "task=broken:Task", "--out", "run"], "the task 'broken:Task' cannot be loaded"),
        (["train", "task={"], "the value of 'task={' is not YAML"),
        (["train", "bytes.yaml"], "bytes.yaml cannot be read"),
        (["eval", "tiny:1x32", "--prompts", "0"], "prompts = 0 leaves nothing to evaluate"),
        (["eval", "tiny:1x32", "--samples", "-1"], "samples = -1 leaves nothing to evaluate"),
        (["eval", "tiny:1x32", "--temperature", "nan"], "temperature is nan"),
        (["eval", "weights"], "cannot be loaded"),
    ],
)
def test_bad_values_are_named(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "a-file").write_text("")
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "bytes.yaml").write_bytes(b"a: \xff\xfe")
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "config.json").write_text('{"model_type": "qwen3"}')
    small = "--out" in arguments and "--resume" not in arguments
    settings = ["model.path=tiny:1x32", "warmup=null", "processes=1", "steps=1"] if small else []
    command_name, *rest = arguments
    done = command(command_name, *settings, *rest, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith("error: ")
    assert sentence in done.stderr


@pytest.mark.parametrize("name", ["[bold]x[/]", ":smile:", "x\x1b[31m", "two words"])
def test_names_of_folders_are_shown_and_not_obeyed(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(Path("runs") / name, steps=2)
    done = command("report", f"runs/{name}")
    assert done.stdout == f"report: runs/{visible(name)}/report.html\n"
    done = command("train", "--out", f"runs/{name}", check=False)
    assert f"runs/{visible(name)} already holds a run" in done.stderr


def test_a_folder_of_a_trl_script_is_found_and_its_model_is_not(command: Command, tmp_path: Path) -> None:
    """FSPOTrainer writes the run into `fspo/` of TRL's output folder, and TRL its checkpoints beside it."""
    out = tmp_path / "out"
    make_run(out / "fspo", steps=2)
    (out / "fspo" / "config.yaml").write_text("model: my/model\nobjective: {name: fspo}\ntrl: {max_steps: 8}\n")
    for name in ("checkpoint-4", "checkpoint-12"):
        (out / name).mkdir()
    assert command("report", str(out)).stdout == f"report: {out}/fspo/report.html\n"
    for arguments in (["eval", str(out)], ["eval", str(out / "fspo")], ["export", str(out), str(tmp_path / "model")]):
        done = command(*arguments, check=False)
        assert done.returncode == 2
        assert "was written by a TRL script: give a checkpoint that it saved, and a task" in done.stderr


def test_python_m_fspo_is_the_command_and_writes_into_any_log(tmp_path: Path) -> None:
    """A log whose encoding lacks a character gets its code."""
    make_run(tmp_path / "größer", steps=1)
    done = fspo("report", "größer", cwd=tmp_path, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.stdout == "report: gr\\xf6\\xdfer/report.html\n"
