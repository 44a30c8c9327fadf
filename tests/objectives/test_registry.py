"""Objectives that are not built in: registered at run time, written `module:Class`, or from another package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import fspo
from fspo.config import TrainConfig
from fspo.objectives import OBJECTIVES, Objective
from helpers.custom_objective import Mine
from helpers.processes import importable, printed, write_package

MODULE = """
from helpers.custom_objective import Mine


class Fixed(Mine):
    name = "fixed"


class Plain:
    Inner = Fixed
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with an objective, on the path of this process."""
    (tmp_path / "own_fixed_range.py").write_text(MODULE)
    return importable(monkeypatch, tmp_path / "own_fixed_range.py")


def loss(objective: Objective) -> float:
    """Of one response of two tokens with S = 0.3 and advantage 1."""
    logprobs, old = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.1, -1.2]])
    return float(objective(logprobs, old, torch.tensor([1.0]), torch.ones(1, 2, dtype=torch.bool)).loss)


def refused(name: str) -> str:
    """The one line with which a name is refused."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        fspo.objectives.get(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_objective_can_be_registered_at_run_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OBJECTIVES, "_classes", dict(OBJECTIVES._classes))  # registrations of a test end with it
    assert not fspo.objectives.known("mine")
    assert fspo.objectives.register(Mine) is Mine
    assert fspo.objectives.register(Mine) is Mine  # the same class once more is no conflict
    assert fspo.objectives.known("mine")
    assert fspo.objectives.names()[-1] == "mine"
    assert loss(fspo.objectives.get("mine", width=0.2)) == pytest.approx(-torch.tensor(0.2).exp().item())
    assert TrainConfig(objective={"name": "mine", "width": 0.2}).objective["width"] == 0.2

    class Taken(Mine):
        name = "gspo"

    class Plain:
        name = "plain"

    with pytest.raises(ValueError, match=r"the objective 'gspo' exists already \(fspo\.objectives\.sequence\.gspo\)"):
        fspo.objectives.register(Taken)
    assert fspo.objectives.get_class("gspo") is fspo.objectives.GSPO
    with pytest.raises(ValueError, match="is no objective: it must be a class derived from Objective"):
        fspo.objectives.register(Plain)  # type: ignore[arg-type]
    assert not fspo.objectives.known("plain")


def test_a_class_of_a_module_is_an_objective_with_parameters(module: str) -> None:
    name = f"{module}:Fixed"
    assert not fspo.objectives.known(name)  # asking imports nothing
    assert loss(fspo.objectives.get(name)) == pytest.approx(-torch.tensor(0.1).exp().item())
    assert loss(fspo.objectives.get(name, width=0.2)) == pytest.approx(-torch.tensor(0.2).exp().item())
    assert fspo.objectives.get(f"{module}:Plain.Inner").name == "fixed"
    assert fspo.objectives.known(name)
    assert TrainConfig(objective={"name": name, "width": 0.2}).objective == {"name": name, "width": 0.2}
    with pytest.raises(ValueError, match="has no parameter 'widht'; did you mean 'width'"):
        TrainConfig(objective={"name": name, "widht": 0.2})
    assert not fspo.objectives.known("fixed")


def test_a_class_that_cannot_be_an_objective_is_refused_in_one_sentence(module: str) -> None:
    assert refused(f"{module}:Plain") == f"{module}:Plain is no objective: it must be a class derived from Objective"
    assert f"cannot be loaded (AttributeError: module '{module}' has no attribute 'Fxed')" in refused(f"{module}:Fxed")
    assert "cannot be loaded (ModuleNotFoundError: No module named 'nowhere')" in refused("nowhere:Fixed")
    assert refused(f"./{module}.py:Fixed").endswith("write module:Class of a module on the path")


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("class Own(Objective)\n", r"cannot be loaded \(SyntaxError: .*flawed\.py, line 1\)\): fix"),
        ("raise RuntimeError('two\\nlines')\n", r"\(RuntimeError: two lines\): fix"),
        ("from fspo.objectives import Objective as Own\n", "flawed:Own is no complete objective: set its .* 'name'"),
        (
            "from fspo.objectives import Objective\nclass Own(Objective):\n    name = 'own'\n    summary = 'own'\n"
            "    aggregation = 'token_mean'\n",
            "flawed:Own is no complete objective: define its method 'surrogate'",
        ),
    ],
)
def test_a_module_with_a_mistake_is_refused_in_one_sentence(
    code: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flawed.py").write_text(code)
    importable(monkeypatch, tmp_path / "flawed.py")
    assert re.search(sentence, refused("flawed:Own"))


def test_installed_packages_add_objectives_by_their_entry_points(tmp_path: Path) -> None:
    """A package that wants a built-in's name, one with its own, one without a class, and a broken one."""
    modules = {"first": "gspo", "second": "fixed", "third": "plain", "broken": "broken"}
    for module, name in modules.items():
        code = "raise RuntimeError('no licence')\n" if module == "broken" else MODULE
        target = f"{module}_package:{'Plain' if name == 'plain' else 'Fixed'}"
        write_package(tmp_path, f"{module}_package", code, "fspo.objectives", {name: target})
    program = """
import json, sys, fspo
names = fspo.objectives.names()
loaded = [name for name in sys.modules if name.endswith("_package")]
gspo, fixed = (fspo.objectives.get_class(name).__module__ for name in ("gspo", "fixed"))
width = fspo.objectives.get("fixed", width=0.25).width
summaries = fspo.objectives.summaries()
print(json.dumps([names, loaded, gspo, fixed, width, summaries]))
"""
    names, loaded, gspo, fixed, width, summaries = printed(program, tmp_path)
    assert set(names[-3:]) == {"fixed", "plain", "broken"}
    assert loaded == []  # listing names imports no other package
    assert (gspo, fixed, width) == ("fspo.objectives.sequence.gspo", "second_package", 0.25)
    assert summaries["plain"] == "plain is no objective: it must be a class derived from Objective"
    assert summaries["broken"].startswith("the objective 'broken' cannot be loaded (RuntimeError: no licence): fix")
