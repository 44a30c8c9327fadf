"""The example of docs/own-objective.md, as a user would add it: one file, and every command knows it.

Inside TRL and verl an objective of another module is tested in tests/engines.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import fspo
from fspo import runs
from fspo.cli.main import app
from fspo.config import TrainConfig
from fspo.objectives import OBJECTIVES
from fspo.training import processes
from fspo.training.loop import train
from helpers.plugins import write_package

MODULE = "my_objective"
SMALL: dict[str, Any] = {
    "model": {"path": "tiny:1x32", "threads": 1},
    "task": {"name": "sort", "n_min": 2, "n_max": 6, "letters": 3, "graded": True},
    "warmup": None,
    "steps": 2,
    "rollout": {"prompts": 8, "group": 8, "max_new_tokens": 8},
    "update": {"epochs": 2, "minibatches": 2, "lr": 3e-3, "schedule": "linear"},
    "eval": {"prompts": 4, "every": 2},
}


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The class of the page in a module of its own, on the path; the registry is as before afterwards."""
    text = (Path(__file__).parents[1] / "docs/own-objective.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", text, re.S)
    assert code is not None
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / f"{MODULE}.py").write_text(code[1], encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    known = dict(OBJECTIVES._classes)
    yield f"{MODULE}:Mine"
    OBJECTIVES._classes = known
    sys.modules.pop(MODULE, None)


@pytest.fixture
def run_folder(example: str, tmp_path: Path) -> Path:
    """A run that trained with it, by `module:Class`."""
    folder = tmp_path / "run"
    train(TrainConfig(**SMALL, objective={"name": example, "width": 0.02}), folder)
    return folder


def test_it_trains_and_is_recorded(run_folder: Path, example: str) -> None:
    run = runs.load(run_folder)
    assert run.objective == {"name": example, "width": 0.02}
    assert [m.step for m in run.metrics] == [1, 2]
    clip_rate = run.metrics[-1].clip_rate
    assert clip_rate is not None
    assert 0 < clip_rate <= 1


def test_a_process_launched_before_the_path_had_it_trains_with_it(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    two = SMALL | {"processes": 2}
    processes.ahead(TrainConfig(**two))
    train(TrainConfig(**two, objective={"name": request.getfixturevalue("example"), "width": 0.02}), tmp_path / "run")
    assert [m.step for m in runs.load(tmp_path / "run").metrics] == [1, 2]


def test_audit_report_and_explorer_know_it_once_registered(run_folder: Path, example: str) -> None:
    from fspo.report import explore

    assert re.search(r"Mine\W+width", page_of(run_folder))  # the process that trained has imported it
    sys.modules.pop(MODULE)
    assert "is not known here, so its range is not drawn: --trust imports it" in page_of(run_folder)
    assert MODULE not in sys.modules  # a folder that names code: nothing is imported for a page
    assert re.search(r"Mine\W+width", page_of(run_folder, "--trust"))
    assert MODULE in sys.modules
    fspo.objectives.register(fspo.objectives.get_class(example))
    assert "mine" in fspo.objectives.names()
    config = yaml.safe_load((run_folder / "config.yaml").read_text())
    config["objective"]["name"] = "mine"
    (run_folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert re.search(r"mine\W+width", page_of(run_folder))
    assert '"name":"mine"' in explore.render().replace('": "', '":"')
    rule = fspo.audit(str(run_folder), rule="mine:width=0.02")
    assert rule.own is not None


def test_audit_and_explorer_take_its_module(run_folder: Path, example: str, tmp_path: Path) -> None:
    from fspo.report import explore

    audited = fspo.audit(str(run_folder), rule=f"{example}:width=0.02")
    assert audited.own is not None
    assert f'"name":"{example}"' in explore.write(tmp_path / "explore.html", [example, "luspo"]).read_text()
    with pytest.raises(ValueError, match="ppo has no range of S that depends on the length alone"):
        explore.render(["ppo"])


def page_of(folder: Path, *options: str) -> str:
    """The page as the command writes it."""
    out = folder / "page.html"
    app(["report", str(folder), "--out", str(out), *options], standalone_mode=False)
    return out.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_package_brings_it_to_every_command_by_its_entry_point(example: str, tmp_path: Path) -> None:
    """Trained, resumed, evaluated, reported, audited and explored by name; nothing has to be trusted."""
    code = (tmp_path / "package" / f"{MODULE}.py").read_text(encoding="utf-8")
    folder = tmp_path / "installed"
    folder.mkdir()
    write_package(folder, "brought", code, "fspo.objectives", {"mine": "brought:Mine"})
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SMALL))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    for arguments in (
        ["train", "small.yaml", "objective=mine", "objective.width=0.02", "processes=2", "--out", "run"],
        ["train", "steps=3", "--out", "run", "--resume"],
        ["eval", "run", "--prompts", "4"],
        ["report", "run", "--out", "page.html"],
        ["audit", "run", "--methods", "all", "--json", "audit.json"],
        ["explore", "--out", "explore.html"],
    ):
        command = [sys.executable, "-m", "fspo", *arguments]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert [line.step for line in runs.load(tmp_path / "run").metrics] == [1, 2, 3]
    assert re.search(r"mine\W+width", (tmp_path / "page.html").read_text(encoding="utf-8"))
    methods = {method["name"]: method for method in json.loads((tmp_path / "audit.json").read_text())["methods"]}
    assert methods["mine"]["parameters"]["width"] > 0
    assert '"name":"mine"' in (tmp_path / "explore.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_it_is_compared_in_worker_processes(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fspo.cli.compare import compare

    suite = {
        "title": "A new objective",
        "base": {key: SMALL[key] for key in ("model", "rollout", "update", "eval", "steps", "warmup")},
        "tasks": {"sort": {"task": SMALL["task"]}},
        "methods": {
            "mine": {"objective": {"name": example}, "trials": [{"width": 0.02}]},
            "gspo": {"objective": {"name": "gspo"}, "trials": [{"clip_low": 0.01, "clip_high": 0.01}]},
        },
        "reference": "mine",
        "seeds": 1,
    }
    (tmp_path / "new.yaml").write_text(yaml.safe_dump(suite))
    compare(str(tmp_path / "new.yaml"), out=tmp_path / "results", workers=1)
    table = (tmp_path / "results" / "table.md").read_text(encoding="utf-8")
    assert "width=0.02" in table
    assert (tmp_path / "results" / "report.html").is_file()


def test_its_band_is_what_its_surrogate_clips(example: str) -> None:
    objective = fspo.objectives.get(example, width=0.1)
    S = torch.tensor([-0.3, 0.05, 0.3]).double().numpy()
    rows = fspo.objectives.Responses(S, S * 0 + 7, S * 0 + 1.0)
    assert fspo.objectives.accepted(objective, rows).tolist() == [1.0, 1.0, 0.0]
    wanted = objective.at_clip_rate(rows, 1 / 3)
    assert wanted.objective is not None
    assert wanted.objective.clip_parameters["width"] == pytest.approx(0.05)
