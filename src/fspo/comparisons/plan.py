"""The plan of a suite: its cells, what can run, and which trial the finished cells decide for.

A cell is one training run. Every cell of a task and a seed sees the same data in the same order, for the same number of
steps, from the same warm start; every method that is tuned has the same number of trials.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fspo import objectives
from fspo.comparisons.suite import Method, Suite, Values
from fspo.config import TrainConfig

__all__ = ["Cell", "Job", "Plan", "Row", "WarmStart", "merge"]

FIRST_TUNING_SEED = 1000  # far above any test seed: tuning and tests share no seed
NO_TRIAL = -1

Row = dict[str, Any]
"""A row of the results."""

Phase = Literal["tune", "test"]
Place = tuple[str, str, str]  # task, setting, method: what one trial is chosen for


@dataclass(frozen=True)
class Cell:
    """One training run, with all that a worker needs to do it."""

    task: str
    setting: str
    method: str
    trial: int
    x: float | None  # first value of the trial
    seed: int
    phase: Phase
    config: Values = field(repr=False)  # a TrainConfig as JSON
    warm: str | None  # key of its warm start
    warm_start: int  # its number
    key: str  # digest of the configuration: the same run has the same key in any suite

    @property
    def place(self) -> Place:
        return self.task, self.setting, self.method

    @property
    def labels(self) -> Row:
        """The identifying columns of its row."""
        names = ("key", "phase", "task", "setting", "method", "trial", "x", "seed", "warm_start")
        return {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        setting = "" if self.setting == "default" else f" {self.setting}"
        trial = "" if self.trial == NO_TRIAL else f", trial {self.trial}"
        return f"{self.phase} {self.task}{setting} {self.method}{trial}, seed {self.seed}"


@dataclass(frozen=True)
class WarmStart:
    """A warmed-up model that cells start from."""

    task: str
    config: Values = field(repr=False)
    key: str

    def __str__(self) -> str:
        number = self.config["seed"]
        return f"warm start of {self.task}" + f", number {number}" * bool(number)


Job = Cell | WarmStart


@dataclass(frozen=True)
class _Trial:
    """A method with one choice of its parameters, without a seed."""

    index: int
    x: float | None
    config: Values
    warm: tuple[str, ...]  # keys of its warm starts


class Plan:
    """The cells of a suite: what can run, in which order, and what the finished ones decide."""

    def __init__(self, suite: Suite) -> None:
        self.suite = suite
        self.warm: dict[str, WarmStart] = {}
        self.tuning: list[Cell] = []
        self.test: list[Cell] = []  # of every trial, seed by seed; of a tuned method only the chosen trial runs
        places = list(itertools.product(suite.all_tasks, suite.settings, suite.methods))
        trials = {place: self._trials(*place) for place in places}
        self.tuned = {place for place in places if not suite.tuning.all and len(trials[place]) > 1}
        for k, place in itertools.product(range(suite.tuning.seeds), places):
            if place in self.tuned and not (suite.tuning.shared and place[0] in suite.confirm):
                self.tuning += [_cell(place, trial, k, "tune") for trial in trials[place]]
        for tasks in (suite.tasks, suite.confirm):
            for k, place in itertools.product(range(suite.seeds), (place for place in places if place[0] in tasks)):
                self.test += [_cell(place, trial, k, "test") for trial in trials[place]]
        tests = sum((1 if place in self.tuned else len(trials[place])) * suite.seeds for place in places)
        self.total = len(self.tuning) + tests

    def choose(self, rows: Iterable[Row]) -> dict[Place, int]:
        """The trial with the best mean score wherever tuning is finished; of equal ones the first.

        With `tuning.shared`, the mean is over the choosing tasks too, and the trial is that of every task. A failed run
        did not reach its end, and scores 0.
        """
        shared = self.suite.tuning.shared
        found = {row["key"]: row["score"] if row["status"] == "finished" else 0.0 for row in rows}
        scores: dict[Place, dict[int, list[float | None]]] = {}
        for cell in self.tuning:
            place = ("", *cell.place[1:]) if shared else cell.place
            scores.setdefault(place, {}).setdefault(cell.trial, []).append(found.get(cell.key))
        chosen: dict[Place, int] = {}
        for place, trials in scores.items():
            known = {t: sum(v for v in values if v is not None) for t, values in trials.items() if None not in values}
            if len(known) == len(trials):
                best = max(known, key=lambda t: (known[t], -t))
                chosen |= {(task, *place[1:]): best for task in (self.suite.all_tasks if shared else [place[0]])}
        return chosen

    def cells(self, rows: Iterable[Row]) -> list[Cell]:
        """All cells to run, as far as finished rows decide it.

        Setting by setting, so that a part of a suite has whole settings: the tuning, then the test seed by seed,
        confirming tasks last.
        """
        chosen, settings = self.choose(rows), list(self.suite.settings)
        test = [cell for cell in self.test if cell.place not in self.tuned or chosen.get(cell.place) == cell.trial]
        return sorted(self.tuning + test, key=lambda cell: settings.index(cell.setting))

    def finished(self, rows: Iterable[Row]) -> list[Row]:
        """The rows of this suite in its order and under its labels; a file may also hold rows of older versions."""
        found = {row["key"]: row for row in rows}
        return [
            found[cell.key] | cell.labels | {"suite": self.suite.name}
            for cell in self.cells(found.values())
            if cell.key in found
        ]

    def ready(self, rows: Iterable[Row], running: Iterable[str], warmed: Iterable[str]) -> list[Job]:
        """What can start now: warm starts, then cells in their order."""
        rows = list(rows)
        busy, warmed, done = set(running), set(warmed), {row["key"] for row in rows}
        waiting = [cell for cell in self.cells(rows) if cell.key not in done]
        needed = {cell.warm for cell in waiting}
        jobs: list[Job] = [job for key, job in self.warm.items() if key in needed - warmed - busy]
        for cell in waiting:
            if cell.key not in busy and (cell.warm is None or cell.warm in warmed):
                busy.add(cell.key)
                jobs.append(cell)
        return jobs

    def _trials(self, task: str, setting: str, method: str) -> list[_Trial]:
        """The trials of a method at one place; a bad configuration is refused here."""
        suite, chosen = self.suite, self.suite.methods[method]
        shared = merge(merge(suite.base, suite.all_tasks[task]), suite.settings[setting])
        result = []
        for index, values in list(enumerate(chosen.trials)) or [(NO_TRIAL, {})]:
            first = next(iter(values.values()), None)
            x = float(first) if isinstance(first, int | float) and not isinstance(first, bool) else None
            config = _resolved(shared, chosen, values, f"{suite.name}, {task}, {setting}, {method}")
            result.append(_Trial(index, x, config, self._warm(task, setting) if config["warmup"] else ()))
        return result

    def _warm(self, task: str, setting: str) -> tuple[str, ...]:
        """The keys of a task's warm starts; a setting has its own only if it changes the model or the warm-up."""
        suite, keys = self.suite, []
        own = {key: value for key, value in suite.settings[setting].items() if key in ("model", "warmup")}
        values = merge(merge(suite.base, suite.all_tasks[task]), own)
        for number in range(suite.warm_starts):
            config = _resolved(values | {"seed": number}, None, {}, f"{suite.name}, {task}")
            keys.append("warm-" + _digest(config))
            self.warm.setdefault(keys[-1], WarmStart(task, config, keys[-1]))
        return tuple(keys)


def merge(values: Mapping[str, Any], over: Mapping[str, Any]) -> Values:
    """`over` laid over `values`, table by table; a table with a name of its own replaces the one below it."""
    result = dict(values)
    for key, value in over.items():
        known = result.get(key)
        merged = isinstance(value, dict) and isinstance(known, dict) and "name" not in value
        result[key] = merge(known, value) if merged and isinstance(known, dict) else value
    return result


def _cell(place: Place, trial: _Trial, number: int, phase: Phase) -> Cell:
    """The cell of the seed of this number, counted from 0 in the tuning and in the test."""
    split = "validation" if phase == "tune" else "eval"
    seed = number + (FIRST_TUNING_SEED if phase == "tune" else 0)
    start = number % len(trial.warm) if trial.warm else 0
    config = trial.config | {"seed": seed, "eval": trial.config["eval"] | {"split": split}}
    # The defaults of the objective are part of the key: a run with another default is another run.
    objective = objectives.for_trainer(**config["objective"]).model_dump(mode="json")
    key = _digest([config, objective, phase, *([start] if start else [])])
    warm = trial.warm[start] if trial.warm else None
    return Cell(*place, trial.index, trial.x, seed, phase, config, warm, start, key)


def _resolved(shared: Values, method: Method | None, trial: Values, where: str) -> Values:
    """The whole configuration as JSON, checked."""
    values = merge({"processes": 1, "model": {"threads": 1}}, shared)
    if method is not None:
        values |= {"objective": method.objective | trial, "advantage": method.advantage}
    try:
        config = TrainConfig(**values)
        # The results are measured when the run ends: no sample answers, and only the last checkpoint.
        kept = {"log": {"samples": 0, "records": True}, "checkpoint": {"every": config.steps, "keep": 1}}
        return TrainConfig(**merge(values, kept)).model_dump(mode="json")
    except ValueError as error:
        raise ValueError(f"the suite's run {where}: {error}") from None


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
