"""A suite: which methods, tasks, settings and seeds are compared, and the cells that this comes to.

A cell is one training run. Every cell of a task sees the same data in the same order, for the same number of steps,
from the same warm start; every method that is tuned has the same number of trials.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from fspo import objectives
from fspo.local.config import TrainConfig, parse
from fspo.settings import Settings, hint

FIRST_TUNING_SEED = 1000  # tuning never sees the seed of a test
NO_TRIAL = -1
Values = dict[str, Any]
Row = dict[str, Any]
Group = tuple[str, str, str]  # task, setting, method: what a trial is chosen for


class Method(Settings):
    """One method."""

    objective: Values = Field(description="name and parameters of the objective")
    advantage: str = Field("rloo", description="how rewards become advantages")
    trials: list[Values] = Field([], description="parameters of the objective to choose from, a table each")


class Tuning(Settings):
    """How a method's trial is chosen."""

    seeds: int = Field(1, ge=1, description="seeds of each trial; they are none of the test's")
    all: bool = Field(False, description="choose nothing: run every trial with every test seed")


class Suite(Settings):
    """What is compared."""

    name: str = Field("", description="the file's name")
    title: str = Field(description="what the suite asks, in one line")
    base: Values = Field({}, description="settings of all runs")
    tasks: dict[str, Values] = Field(min_length=1, description="label and settings of each task")
    settings: dict[str, Values] = Field({"default": {}}, min_length=1, description="label and settings of each variant")
    methods: dict[str, Method] = Field(
        min_length=1, description="label, objective and trials of each method, or the suite to take them from"
    )
    reference: str = Field(description="the method that the others are compared with")
    seeds: int = Field(8, ge=1, description="test seeds, from 0")
    tuning: Tuning = Tuning()

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
            said = ", ".join(f"{label} {number}" for label, number in numbers.items())
            raise ValueError(f"the methods have different numbers of trials ({said}): give each the same number")
        for label, values in [("base", self.base), *self.tasks.items(), *self.settings.items()]:
            for key in {"objective", "advantage", "seed"} & values.keys():
                raise ValueError(f"{label} sets {key}: write objectives and advantages under methods, and seeds: N")
        return self


def names() -> list[str]:
    """The suites that come with the package."""
    return sorted(path.name.removesuffix(".yaml") for path in _folder().iterdir() if path.name.endswith(".yaml"))


def load(name: str) -> Suite:
    """A suite of the package by its name, or any by its file."""
    if name in names():
        with resources.as_file(_folder() / f"{name}.yaml") as path:
            return read(path)
    if not Path(name).is_file():
        raise ValueError(f"there is no suite {name!r}, nor a file of that name{hint(name, names())}")
    return read(Path(name))


def read(path: Path) -> Suite:
    values = parse(path)
    if "name" in values:
        raise ValueError(f"{path} gives a name: a suite is called as its file")
    return Suite(name=path.stem, **values)


@dataclass(frozen=True)
class Cell:
    """One run, and what a worker must know to do it."""

    task: str
    setting: str
    method: str
    trial: int
    x: float | None  # first value of the trial
    seed: int
    phase: Literal["tune", "test"]
    config: Values = field(repr=False)  # a TrainConfig as JSON
    warm: str | None  # key of its warm start
    key: str

    @property
    def group(self) -> Group:
        return self.task, self.setting, self.method

    @property
    def labels(self) -> Row:
        """What a row of the results says of who it is."""
        names = ("key", "phase", "task", "setting", "method", "trial", "x", "seed")
        return {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        setting = "" if self.setting == "default" else f" {self.setting}"
        trial = "" if self.trial == NO_TRIAL else f", trial {self.trial}"
        return f"{self.phase} {self.task}{setting} {self.method}{trial}, seed {self.seed}"


@dataclass(frozen=True)
class Warm:
    """A warm start to make, which cells wait for."""

    task: str
    config: Values = field(repr=False)
    key: str

    def __str__(self) -> str:
        return f"warm start of {self.task}"


Job = Cell | Warm


class Plan:
    """The cells of a suite: what can run, in which order, and what the finished ones decide."""

    def __init__(self, suite: Suite) -> None:
        self.suite = suite
        self.warm: dict[str, Warm] = {}
        self.tuning: list[Cell] = []
        self.test: list[Cell] = []  # of every trial, seed by seed; a tuned method runs only one of them
        places = list(itertools.product(suite.tasks, suite.settings, suite.methods))
        made = {place: self._trials(*place) for place in places}
        choosing = not suite.tuning.all
        tuning = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + suite.tuning.seeds)
        for seed, place in itertools.product(tuning, places):
            if choosing and len(made[place]) > 1:
                self.tuning += [self._cell(place, trial, seed, "tune") for trial in made[place]]
        for seed, place in itertools.product(range(suite.seeds), places):
            self.test += [self._cell(place, trial, seed, "test") for trial in made[place]]
        self.choosing = {place for place in places if choosing and len(made[place]) > 1}
        self.total = len(self.tuning) + sum(
            (1 if place in self.choosing else len(made[place])) * suite.seeds for place in places
        )

    def choose(self, rows: Iterable[Row]) -> dict[Group, int]:
        """The trial of each tuned group whose tuning is finished: the best mean score, the first of equals.

        A run that failed has not got to the end, and scores nothing.
        """
        found = {row["key"]: row["score"] if row["status"] == "finished" else 0.0 for row in rows}
        scores: dict[Group, dict[int, list[float | None]]] = {}
        for cell in self.tuning:
            scores.setdefault(cell.group, {}).setdefault(cell.trial, []).append(found.get(cell.key))
        chosen = {}
        for group, trials in scores.items():
            known = {t: sum(v for v in values if v is not None) for t, values in trials.items() if None not in values}
            if len(known) == len(trials):
                chosen[group] = max(known, key=lambda t: (known[t], -t))
        return chosen

    def cells(self, rows: Iterable[Row]) -> list[Cell]:
        """What is to be run, as far as finished rows decide it: the tuning, then the test seed by seed."""
        chosen = self.choose(rows)
        return self.tuning + [
            cell for cell in self.test if cell.group not in self.choosing or chosen.get(cell.group) == cell.trial
        ]

    def finished(self, rows: Iterable[Row]) -> list[Row]:
        """The rows of this suite in its order and under its labels; a file may hold those of other versions of it."""
        found = {row["key"]: row for row in rows}
        return [
            found[cell.key] | cell.labels | {"suite": self.suite.name}
            for cell in self.cells(found.values())
            if cell.key in found
        ]

    def ready(self, rows: Iterable[Row], running: Iterable[str], warmed: Iterable[str]) -> list[Job]:
        """What can start now, the best first: warm starts, then tuning, then the test, all seeds abreast."""
        rows = list(rows)
        busy, warmed, done = set(running), set(warmed), {row["key"] for row in rows}
        jobs: list[Job] = []
        waiting = [cell for cell in self.cells(rows) if cell.key not in done]
        needed = {cell.warm for cell in waiting}
        jobs += [job for key, job in self.warm.items() if key in needed and key not in warmed and key not in busy]
        seen = set(busy)
        for cell in waiting:
            if cell.key not in seen and (cell.warm is None or cell.warm in warmed):
                seen.add(cell.key)
                jobs.append(cell)
        return jobs

    def _trials(self, task: str, setting: str, method: str) -> list[tuple[int, float | None, Values, str | None]]:
        """Index, first value, configuration and warm start of each trial; a bad one is refused here."""
        suite, chosen = self.suite, self.suite.methods[method]
        shared = merge(merge(suite.base, suite.tasks[task]), suite.settings[setting])
        trials = list(enumerate(chosen.trials)) or [(NO_TRIAL, {})]
        made = []
        for index, values in trials:
            first = next(iter(values.values()), None)
            x = float(first) if isinstance(first, int | float) and not isinstance(first, bool) else None
            config = _resolved(shared, chosen, values, f"{suite.name}, {task}, {setting}, {method}")
            made.append((index, x, config, self._warm(task, setting) if config["warmup"] else None))
        return made

    def _warm(self, task: str, setting: str) -> str:
        """The key of the start of a task; a setting has one of its own only if it changes the model or the start."""
        suite = self.suite
        own = {key: value for key, value in suite.settings[setting].items() if key in ("model", "warmup")}
        config = _resolved(merge(merge(suite.base, suite.tasks[task]), own), None, {}, f"{suite.name}, {task}")
        key = "warm-" + _digest(config)
        self.warm.setdefault(key, Warm(task, config, key))
        return key

    def _cell(
        self,
        place: Group,
        trial: tuple[int, float | None, Values, str | None],
        seed: int,
        phase: Literal["tune", "test"],
    ) -> Cell:
        index, x, config, warm = trial
        split = "validation" if phase == "tune" else "eval"
        config = config | {"seed": seed, "eval": config["eval"] | {"split": split}}
        # With the defaults of the objective as they are now: a change of one is another run.
        objective = objectives.get(**config["objective"]).model_dump(mode="json")
        return Cell(*place, index, x, seed, phase, config, warm, _digest([config, objective, phase]))


def merge(values: Mapping[str, Any], over: Mapping[str, Any]) -> Values:
    """`over` laid over `values`, table by table; a table that has a name of its own replaces what was there."""
    result = dict(values)
    for key, value in over.items():
        known = result.get(key)
        merged = isinstance(value, dict) and isinstance(known, dict) and "name" not in value
        result[key] = merge(known, value) if merged and isinstance(known, dict) else value
    return result


def _resolved(shared: Values, method: Method | None, trial: Values, where: str) -> Values:
    """The whole configuration as JSON, checked."""
    values = merge({"model": {"threads": 1}}, shared)
    if method is not None:
        values |= {"objective": method.objective | trial, "advantage": method.advantage}
    try:
        config = TrainConfig(**values)
        # Only what is measured at the end is kept: no answers, and one checkpoint, which every run writes.
        values = merge(
            values, {"log": {"samples": 0, "records": True}, "checkpoint": {"every": config.steps, "keep": 1}}
        )
        return TrainConfig(**values).model_dump(mode="json")
    except ValueError as error:
        raise ValueError(f"the suite's run {where}: {error}") from None


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _folder() -> Any:
    return resources.files("fspo.comparing") / "suites"
