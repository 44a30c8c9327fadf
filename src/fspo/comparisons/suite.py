"""A suite: a YAML file that names the methods, tasks, settings and seeds of a comparison."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from fspo.config import parse
from fspo.settings import Settings, hint

__all__ = ["Method", "Suite", "Tuning", "Values", "load", "names"]

Values = dict[str, Any]
"""A table of settings, as YAML or JSON holds it."""


class Method(Settings):
    """One method."""

    objective: Values = Field(description="name and parameters of the objective; the name may be module:Class")
    advantage: str = Field("rloo", description="how rewards become advantages")
    trials: list[Values] = Field([], description="parameters of the objective to choose from, one table per trial")


class Tuning(Settings):
    """How the trial of a method is chosen."""

    seeds: int = Field(1, ge=1, description="seeds per trial; no test uses them")
    all: bool = Field(False, description="choose nothing: run every trial with every test seed")
    shared: bool = Field(
        False, description="choose one trial per setting by its mean over `tasks`, for those of `confirm` too"
    )


class Suite(Settings):
    """What is compared."""

    name: str = Field("", description="name of the file")
    title: str = Field(description="the question of the suite, in one line")
    hypothesis: str = Field("", description="what the suite is to show, written before it is run")
    base: Values = Field({}, description="settings of all runs")
    tasks: dict[str, Values] = Field(min_length=1, description="label and settings of each task")
    confirm: dict[str, Values] = Field(
        {}, description="label and settings of tasks by which nothing is chosen: they confirm what `tasks` suggest"
    )
    settings: dict[str, Values] = Field({"default": {}}, min_length=1, description="label and settings of each variant")
    methods: dict[str, Method] = Field(
        min_length=1, description="label, objective and trials of each method, or the suite to take them from"
    )
    reference: str = Field(description="the method that the others are compared with")
    seeds: int = Field(8, ge=1, description="number of test seeds, counted from 0")
    warm_starts: int = Field(
        1, ge=1, description="warm-up runs per task; seed s starts from the model of number s modulo this"
    )
    tuning: Tuning = Tuning()

    @property
    def all_tasks(self) -> dict[str, Values]:
        """The choosing and the confirming tasks."""
        return self.tasks | self.confirm

    @field_validator("methods", mode="before")
    @classmethod
    def _shared(cls, methods: Any) -> Any:
        return load(methods).methods if isinstance(methods, str) else methods

    @model_validator(mode="after")
    def _fits(self) -> Suite:
        if self.reference not in self.methods:
            raise ValueError(
                f"reference = {self.reference!r} is not one of the methods{hint(self.reference, self.methods)}"
            )
        numbers = {label: len(method.trials) for label, method in self.methods.items() if method.trials}
        if not self.tuning.all and len(set(numbers.values())) > 1:
            listed = ", ".join(f"{label} {number}" for label, number in numbers.items())
            raise ValueError(f"the methods have different numbers of trials ({listed}): give each the same number")
        for label in self.tasks.keys() & self.confirm.keys():
            raise ValueError(f"{label} is under tasks and under confirm: a task is either chosen by or confirmed on")
        if self.tuning.all and self.tuning.shared:
            raise ValueError("tuning.all runs every trial and tuning.shared chooses one: set one of them")
        for label, values in [("base", self.base), *self.all_tasks.items(), *self.settings.items()]:
            for key in {"objective", "advantage", "seed"} & values.keys():
                raise ValueError(f"{label} sets {key}: write objectives and advantages under methods, and seeds: N")
        return self


def names() -> list[str]:
    """The suites that come with the package."""
    return sorted(path.name.removesuffix(".yaml") for path in _folder().iterdir() if path.name.endswith(".yaml"))


def load(name: str) -> Suite:
    """A suite of the package by its name, or any other by its file."""
    if name in names():
        with resources.as_file(_folder() / f"{name}.yaml") as path:
            return _read(path)
    if not Path(name).is_file():
        raise ValueError(f"there is no suite {name!r}, nor a file of that name{hint(name, names())}")
    return _read(Path(name))


def _read(path: Path) -> Suite:
    values = parse(path)
    if "name" in values:
        raise ValueError(f"{path} sets a name: remove it, a suite is named after its file")
    return Suite(name=path.stem, **values)


def _folder() -> Traversable:
    return resources.files("fspo.comparisons") / "suites"
