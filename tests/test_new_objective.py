"""The example of docs/own-objective.md, as a user would add it: one file, and every command knows it.

Inside TRL and verl an objective of another module is tested in tests/engines.
"""

from __future__ import annotations

import re
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
from fspo.config import read
from fspo.objectives import OBJECTIVES
from fspo.training.loop import train
from helpers.batches import assert_equal, loss_by, random_batch

MODULE = "my_objective"


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


def test_the_token_level_example_is_its_formula() -> None:
    text = (Path(__file__).parents[1] / "docs/own-objective.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", text, re.S)[1], names)
    batch = random_batch(0)

    def formula(logprobs: torch.Tensor) -> torch.Tensor:
        terms = torch.exp(logprobs - batch.old_logprobs) * batch.advantages.unsqueeze(-1)
        return -terms[batch.mask].mean()

    assert_equal(loss_by(names["Unclipped"](), batch), formula, batch, "unclipped")


def trained(small: list[str], example: str, folder: Path, processes: int = 1) -> Path:
    """A run that trained with it, by `module:Class`."""
    own = ["steps=2", f"processes={processes}", "update.lr=0.003", "task.graded=true"]
    train(read(None, [*small, *own, f"objective={{name: '{example}', width: 0.02}}"]), folder)
    return folder


@pytest.mark.parametrize("processes", [1, 2])
def test_it_trains_and_is_recorded(small: list[str], example: str, tmp_path: Path, processes: int) -> None:
    run = runs.load(trained(small, example, tmp_path / "run", processes))
    assert run.objective == {"name": example, "width": 0.02}
    assert [m.step for m in run.metrics] == [1, 2]
    rates = [m.clip_rate for m in run.metrics if m.clip_rate is not None]  # none where all rewards are equal
    assert 0 < max(rates) <= 1


def test_audit_and_report_know_it_once_registered(small: list[str], example: str, tmp_path: Path) -> None:
    run_folder = trained(small, example, tmp_path / "run")
    assert re.search(r"Mine\W+width", page_of(run_folder))  # the process that trained has imported it
    sys.modules.pop(MODULE)
    assert "The run&#39;s own range is not drawn" in page_of(run_folder)
    assert MODULE not in sys.modules  # a folder that names code: nothing is imported for a page
    assert re.search(r"Mine\W+width", page_of(run_folder, "--trust"))
    assert MODULE in sys.modules
    fspo.objectives.register(fspo.objectives.get_class(example))
    assert "mine" in fspo.objectives.names()
    config = yaml.safe_load((run_folder / "config.yaml").read_text())
    config["objective"]["name"] = "mine"
    (run_folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert re.search(r"mine\W+width", page_of(run_folder))
    rule = fspo.audit(str(run_folder), rule="mine:width=0.02")
    assert rule.own is not None


def page_of(folder: Path, *options: str) -> str:
    """The page as the command writes it."""
    out = folder / "page.html"
    app(["report", str(folder), "--out", str(out), *options], standalone_mode=False)
    return out.read_text(encoding="utf-8")
