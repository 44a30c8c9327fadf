"""Objectives that are not built in: registered at run time, written `module:Class`, or from another package."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import ClassVar

import pytest
import torch

import fspo
from fspo.config import TrainConfig
from fspo.objectives import OBJECTIVES, Objective, Surrogate
from fspo.objectives.batch import Batch
from fspo.objectives.objective import Aggregation
from helpers.plugins import printed, write_package

MODULE = """
from typing import ClassVar

from pydantic import Field

from fspo.objectives import Objective, Surrogate
from fspo.objectives.primitives import pessimistic


class Fixed(Objective):
    name: ClassVar[str] = "fixed"
    summary: ClassVar[str] = "a fixed range on the sequence ratio"
    aggregation: ClassVar[str] = "sequence_mean_of_sums"

    width: float = Field(0.1, ge=0, description="half-width of the range on S")

    def surrogate(self, batch):
        A = batch.row_advantages
        clip = pessimistic(batch.log_ratio, A, -self.width, self.width, self.exponent_cap)
        return Surrogate(clip.ratio * A, clip.accepted.to(A.dtype), clip.capped)


class Plain:
    pass
"""


class Weighted(Objective):
    """The sequence ratio without a clip range, times a factor."""

    name: ClassVar[str] = "weighted"
    summary: ClassVar[str] = "the sequence ratio times a factor"
    aggregation: ClassVar[Aggregation] = "sequence_mean_of_sums"

    factor: float = 2.0

    def surrogate(self, batch: Batch) -> Surrogate:
        ones = torch.ones_like(batch.log_ratio.detach())
        return Surrogate(self.factor * batch.log_ratio.exp() * batch.row_advantages, ones, 0 * ones)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with an objective, on the path of this process."""
    (tmp_path / "own_fixed_range.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own_fixed_range"


@pytest.fixture
def unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registrations of a test end with it."""
    monkeypatch.setattr(OBJECTIVES, "_classes", dict(OBJECTIVES._classes))


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


@pytest.mark.usefixtures("unchanged")
def test_an_objective_can_be_registered_at_run_time() -> None:
    assert not fspo.objectives.known("weighted")
    assert fspo.objectives.register(Weighted) is Weighted
    assert fspo.objectives.register(Weighted) is Weighted  # the same class once more is no conflict
    assert fspo.objectives.known("weighted")
    assert fspo.objectives.names()[-1] == "weighted"
    assert loss(fspo.objectives.get("weighted", factor=3.0)) == pytest.approx(-3.0 * torch.tensor(0.3).exp().item())
    assert TrainConfig(objective={"name": "weighted", "factor": 3.0}).objective["factor"] == 3.0


@pytest.mark.usefixtures("unchanged")
def test_a_name_that_is_taken_is_refused() -> None:
    class Other(Weighted):
        name: ClassVar[str] = "gspo"

    with pytest.raises(ValueError, match=r"the objective 'gspo' exists already \(fspo\.objectives\.sequence\.gspo\)"):
        fspo.objectives.register(Other)
    assert fspo.objectives.get_class("gspo") is fspo.objectives.GSPO


@pytest.mark.usefixtures("unchanged")
def test_only_a_subclass_of_objective_is_registered() -> None:
    class Plain:
        name = "plain"

    with pytest.raises(ValueError, match="is no objective: it must be a class derived from Objective"):
        fspo.objectives.register(Plain)  # type: ignore[arg-type]
    assert not fspo.objectives.known("plain")


def test_a_class_of_a_module_is_an_objective_with_parameters(module: str) -> None:
    name = f"{module}:Fixed"
    assert loss(fspo.objectives.get(name)) == pytest.approx(-torch.tensor(0.1).exp().item())
    assert loss(fspo.objectives.get(name, width=0.2)) == pytest.approx(-torch.tensor(0.2).exp().item())
    assert TrainConfig(objective={"name": name, "width": 0.2}).objective == {"name": name, "width": 0.2}
    with pytest.raises(ValueError, match="has no parameter 'widht'; did you mean 'width'"):
        TrainConfig(objective={"name": name, "widht": 0.2})
    assert not fspo.objectives.known("fixed")


def test_a_class_that_cannot_be_an_objective_is_refused_in_one_sentence(module: str) -> None:
    assert refused(f"{module}:Plain") == f"{module}:Plain is no objective: it must be a class derived from Objective"
    assert refused("json:loads") == "json:loads is no objective: it must be a class derived from Objective"
    assert f"cannot be loaded (AttributeError: module '{module}' has no attribute 'Fxed')" in refused(f"{module}:Fxed")
    assert "cannot be loaded (ModuleNotFoundError: No module named 'nowhere')" in refused("nowhere:Fixed")
    assert refused(f"./{module}.py:Fixed").endswith("write module:Class of a module on the path")


def test_an_installed_package_adds_an_objective_by_its_entry_point(tmp_path: Path) -> None:
    entries = {"fixed": "other_objectives:Fixed", "plain": "other_objectives:Plain"}
    write_package(tmp_path, "other_objectives", MODULE, "fspo.objectives", entries)
    code = (
        "import json, sys, fspo\n"
        "known = fspo.objectives.names(); loaded = 'other_objectives' in sys.modules\n"
        "objective = fspo.objectives.get('fixed', width=0.25)\n"
        "try: fspo.objectives.get('plain')\n"
        "except ValueError as error: problem = str(error)\n"
        "print(json.dumps([known[-2:], loaded, objective.width, problem]))"
    )
    names, loaded, width, problem = printed(code, tmp_path)
    assert names == ["fixed", "plain"]
    assert not loaded  # listing names imports no other package
    assert width == 0.25
    assert problem == "plain is no objective: it must be a class derived from Objective"


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("class Own(Objective)\n", r"cannot be loaded \(SyntaxError in .*flawed\.py, line 1: expected ':'\): mend"),
        ("raise RuntimeError('two\\nlines')\n", r"\(RuntimeError in .*flawed\.py, line 1: two lines\): mend"),
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
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "flawed", raising=False)
    assert re.search(sentence, refused("flawed:Own"))


def test_a_class_inside_another_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nested = MODULE.replace("\n\nclass Plain:", "\n\nclass Outer:\n    Inner = Fixed\n\n\nclass Plain:")
    (tmp_path / "own_nested.py").write_text(nested)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not fspo.objectives.known("own_nested:Outer.Inner")  # asking imports nothing
    assert fspo.objectives.get("own_nested:Outer.Inner", width=0.3).name == "fixed"
    assert fspo.objectives.known("own_nested:Outer.Inner")


def test_a_package_that_takes_a_name_twice_is_warned_about(tmp_path: Path) -> None:
    for module, name in (("first_package", "gspo"), ("second_package", "fixed"), ("third_package", "fixed")):
        write_package(tmp_path, module, MODULE, "fspo.objectives", {name: f"{module}:Fixed"})
    program = """
import json, warnings, fspo
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    gspo, fixed = (fspo.objectives.get_class(name).__module__ for name in ("gspo", "fixed"))
    fspo.objectives.names()
print(json.dumps([gspo, fixed, sorted(str(w.message) for w in found)]))
"""
    gspo, fixed, found = printed(program, tmp_path)
    assert gspo == "fspo.objectives.sequence.gspo"
    other = {"second_package": "third_package", "third_package": "second_package"}[fixed]
    assert found == [
        f"the objective 'fixed' of {other}:Fixed is not used: {fixed}:Fixed has that name already",
        "the objective 'gspo' of first_package:Fixed is not used: fspo has that name already",
    ]


def test_a_broken_package_does_not_hide_the_others(tmp_path: Path) -> None:
    code = "raise RuntimeError('no licence')\n"
    write_package(tmp_path, "broken_package", code, "fspo.objectives", {"broken": "broken_package:Broken"})
    program = """
import json, numpy as np, fspo
from fspo.report import explore
L = np.random.default_rng(0).integers(10, 999, 400)
S = 0.02 * np.sqrt(L) * np.random.default_rng(1).normal(size=400)
methods = {m.name: m for m in fspo.audit({"length": L, "log_ratio": S}, methods="all").methods}
print(json.dumps([fspo.objectives.summaries()["broken"], methods["broken"].note, methods["gspo"].note,
    "broken" in explore.render()]))
"""
    summary, note, other, drawn = printed(program, tmp_path)
    assert re.fullmatch(
        r"the objective 'broken' cannot be loaded \(RuntimeError in .*, line 1: no licence\): mend that module, or .*",
        summary,
    )
    assert note == summary
    assert other == ""
    assert not drawn
