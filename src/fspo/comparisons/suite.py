"""A suite: a YAML file that names the methods, tasks, settings and seeds of a comparison."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from fspo.config import parse
from fspo.settings import Settings, hint

SUITES = Path(__file__).parent / "suites"

Values = dict[str, Any]
"""A table of settings, as YAML or JSON holds it."""

Trial = tuple[Values, float]
"""Parameters of the objective, and a factor on the learning rate."""


class Method(Settings):
    """One method."""

    objective: Values = Field(description="name and parameters of the objective; the name may be module:Class")
    advantage: str = Field("rloo", description="how rewards become advantages")
    trials: list[Values] = Field([], description="parameters of the objective to choose from, one table per trial")
    tuned: bool = Field(False, description="whether its trials are the suite's `ranges`")


class Tuning(Settings):
    """How the trial of a method is chosen."""

    seeds: int = Field(1, ge=1, description="seeds per trial; no test uses them")
    shared: bool = Field(
        False, description="choose one trial per setting by its mean over `tasks`, for all other tasks too"
    )
    lr_factors: list[float] = Field([1.0], min_length=1, description="learning rates to cross the trials with")
    clip_rates: list[float] = Field(
        [0.03, 0.1, 0.3], min_length=1, description="shares to clip, for which --ranges finds the ranges"
    )


class Suite(Settings):
    """What is compared."""

    name: str = Field("", description="name of the file")
    title: str = Field(description="the question of the suite, in one line")
    hypothesis: str = Field("", description="what the suite is to show, written before it is run")
    endpoint: Literal["gain", "weaker end"] = Field(
        "gain", description="what methods are compared by: the normalised gain, or the smaller one of the two ends"
    )
    base: Values = Field({}, description="settings of all runs")
    tasks: dict[str, Values] = Field(min_length=1, description="label and settings of each task")
    confirm: dict[str, Values] = Field(
        {}, description="label and settings of tasks by which nothing is chosen: they confirm what `tasks` suggest"
    )
    crossed: dict[str, Values] = Field(
        {}, description="label and settings of tasks run again with another advantage, in tables of their own"
    )
    settings: dict[str, Values] = Field({"default": {}}, min_length=1, description="label and settings of each variant")
    methods: dict[str, Method] = Field(min_length=1, description="label, objective and trials of each method")
    ranges: dict[str, dict[str, list[Values]]] = Field(
        {}, description="trials by setting and method, as --ranges prints them; they replace those of the method"
    )
    reference: str = Field(description="the method that the others are compared with")
    seeds: int = Field(8, ge=1, description="number of test seeds")
    first_seed: int = Field(0, ge=0, lt=1000, description="the first test seed: a repetition starts after the others'")
    warm_starts: int = Field(
        1, ge=1, description="warm-up runs per task; seed s starts from the model of number s modulo this"
    )
    tuning: Tuning = Tuning()

    @property
    def all_tasks(self) -> dict[str, Values]:
        """The tasks that choose, that confirm, and that are crossed with another advantage."""
        return self.tasks | self.confirm | self.crossed

    def trials(self, setting: str, method: str) -> list[Trial]:
        """The trials of a method in a setting, ranges crossed with learning rates; empty if nothing is tuned."""
        ranges = self.ranges.get(setting, {}).get(method, self.methods[method].trials)
        return list(itertools.product(ranges, self.tuning.lr_factors))

    def require_ranges(self) -> None:
        """Every method that is tuned by the suite's ranges must have them, in every setting."""
        for setting, (label, method) in itertools.product(self.settings, self.methods.items()):
            if method.tuned and not self.trials(setting, label):
                raise ValueError(f"{label} has no ranges in {setting}: run fspo compare with --ranges first")

    @model_validator(mode="after")
    def _fits(self) -> Suite:
        if self.reference not in self.methods:
            raise ValueError(
                f"reference = {self.reference!r} is not one of the methods{hint(self.reference, self.methods)}"
            )
        for setting in self.settings:
            numbers = {label: len(trials) for label in self.methods if (trials := self.trials(setting, label))}
            if len(set(numbers.values())) > 1:
                listed = ", ".join(f"{label} {number}" for label, number in numbers.items())
                raise ValueError(f"the methods have different numbers of trials ({listed}): give each the same number")
        if len(self.all_tasks) < len(self.tasks) + len(self.confirm) + len(self.crossed):
            raise ValueError("a label is under two of tasks, confirm and crossed: list each task under one of them")
        for label, values in [("base", self.base), *self.all_tasks.items(), *self.settings.items()]:
            own = {"objective", "seed"} | ({"advantage"} if label not in self.crossed else set())
            for key in own & values.keys():
                raise ValueError(f"{label} sets {key}: write objectives and advantages under methods, and seeds: N")
        return self


def merge(values: Mapping[str, Any], over: Mapping[str, Any]) -> Values:
    """`values` updated by `over`, table by table; a table with a `name` replaces the old one."""
    result = dict(values)
    for key, value in over.items():
        known = result.get(key)
        merged = isinstance(value, dict) and isinstance(known, dict) and "name" not in value
        result[key] = merge(known, value) if merged and isinstance(known, dict) else value
    return result


def names() -> list[str]:
    """The suites that come with the package."""
    return sorted(path.stem for path in SUITES.glob("*.yaml"))


def load(name: str) -> Suite:
    """A suite of the package by its name, or any other by its file.

    A file that sets `like: SUITE` has that suite's fields where it sets none of its own.
    """
    path = SUITES / f"{name}.yaml" if name in names() else Path(name)
    if not path.is_file():
        raise ValueError(f"there is no suite {name!r}, nor a file of that name{hint(name, names())}")
    values = parse(path)
    if "name" in values:
        raise ValueError(f"{path} sets a name: remove it, a suite is named after its file")
    if "like" in values:
        values = load(str(values.pop("like"))).model_dump(exclude={"name"}, exclude_unset=True) | values
    return Suite(name=path.stem, **values)
