"""The plan of a suite: cells, which can run now, and which trial tuning chose.

A cell is one training run. Every cell of a task and a seed sees the same data in the same order, for the same number of
steps, from the same warm start; every method that is tuned has the same number of trials.

A cell is identified by the settings that its suite sets, the number of its warm start and `SCHEMA_VERSION`. Defaults
are no part of its key: a new setting, or a new default that leaves runs as they were, orphans no result. A change that
gives stored cells other outcomes raises `SCHEMA_VERSION`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from fspo.comparisons.suite import Suite, Values, merge
from fspo.config import TrainConfig

SCHEMA_VERSION = 1
FIRST_TUNING_SEED = 1000  # far above any test seed: tuning and tests share no seed
NO_TRIAL = -1

Row = dict[str, Any]
"""A row of the results."""

Phase = Literal["tune", "test"]
Combination = tuple[str, str, str]  # task, setting, method: tuning chooses a trial for each


@dataclass(frozen=True)
class Cell:
    """One training run, with all that a worker needs to do it."""

    task: str
    setting: str
    method: str
    trial: int
    seed: int
    phase: Phase
    config: Values = field(repr=False)  # the settings that the suite sets
    warm: str | None  # key of its warm start
    warm_start: int  # its number
    key: str  # the same run has the same key in any suite

    @property
    def combination(self) -> Combination:
        return self.task, self.setting, self.method

    @property
    def labels(self) -> Row:
        """The identifying columns of its row."""
        names = ("key", "phase", "task", "setting", "method", "trial", "seed", "warm_start")
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


class Plan:
    """The cells of a suite: what can run, in which order, and what the finished ones decide."""

    def __init__(self, suite: Suite) -> None:
        self.suite = suite
        combinations = list(itertools.product(suite.all_tasks, suite.settings, suite.methods))
        trials = {c: self._trials(*c) for c in combinations}
        self.warm: dict[str, WarmStart] = {}
        starts = {(task, setting): self._starts(task, setting) for task, setting, _ in combinations}
        self.tuned = {c for c in combinations if len(trials[c]) > 1}

        def cells(phase: Phase, seeds: range, chosen: list[Combination]) -> list[Cell]:
            each = itertools.product(seeds, chosen)
            return [_cell(c, *trial, starts[c[:2]], k, phase) for k, c in each for trial in trials[c].items()]

        tuned = [c for c in combinations if c in self.tuned and (c[0] in suite.tasks or not suite.tuning.shared)]
        self.tuning = cells("tune", range(suite.tuning.seeds), tuned)
        self.test: list[Cell] = []  # of every trial, seed by seed; of a tuned method only the chosen trial runs
        seeds = range(suite.first_seed, suite.first_seed + suite.seeds)
        for tasks in (suite.confirm, suite.crossed, suite.tasks):
            self.test += cells("test", seeds, [c for c in combinations if c[0] in tasks])
        tests = sum((1 if c in self.tuned else len(trials[c])) * suite.seeds for c in combinations)
        self.total = len(self.tuning) + tests

    def choose(self, rows: Iterable[Row]) -> dict[Combination, int]:
        """The trial with the best mean score wherever tuning is finished; of equal ones the first.

        With `tuning.shared`, the mean is over the choosing tasks too, and the trial is that of every task. A failed run
        did not reach its end, and scores 0.
        """
        shared = self.suite.tuning.shared
        score_of = {row["key"]: row["score"] if row["status"] == "finished" else 0.0 for row in rows}
        scores: dict[Combination, dict[int, list[float | None]]] = {}
        for cell in self.tuning:
            key = ("", *cell.combination[1:]) if shared else cell.combination
            scores.setdefault(key, {}).setdefault(cell.trial, []).append(score_of.get(cell.key))
        chosen: dict[Combination, int] = {}
        for (task, setting, method), trials in scores.items():
            known = {t: sum(v for v in values if v is not None) for t, values in trials.items() if None not in values}
            if len(known) == len(trials):
                best = max(known, key=lambda t: (known[t], -t))
                chosen |= {(t, setting, method): best for t in (self.suite.all_tasks if shared else [task])}
        return chosen

    def cells(self, rows: Iterable[Row]) -> list[Cell]:
        """All cells to run, as far as finished rows decide it.

        The tuning, then the test seed by seed, so that a part of a suite has whole seeds; confirming tasks first.
        """
        chosen = self.choose(rows)

        def runs(cell: Cell) -> bool:
            return cell.combination not in self.tuned or chosen.get(cell.combination) == cell.trial

        return self.tuning + list(filter(runs, self.test))

    def finished(self, rows: Iterable[Row]) -> list[Row]:
        """The rows of this suite in its order and under its labels; a file may also hold rows of older versions."""
        by_key = {row["key"]: row for row in rows}
        return [
            by_key[cell.key] | cell.labels | {"suite": self.suite.name}
            for cell in self.cells(by_key.values())
            if cell.key in by_key
        ]

    def ready(self, rows: Iterable[Row], running: Iterable[str], warmed: Iterable[str]) -> list[Job]:
        """What can start now: cells in their order, and for one whose warm start is missing that warm start."""
        rows = list(rows)
        busy, warmed, done = set(running), set(warmed), {row["key"] for row in rows}
        jobs: list[Job] = []
        for cell in self.cells(rows):
            job: Job = cell if cell.warm is None or cell.warm in warmed else self.warm[cell.warm]
            if cell.key not in done and job.key not in busy:
                busy.add(job.key)
                jobs.append(job)
        return jobs

    def warm_of(self, job: Job) -> WarmStart | None:
        """The warm start that a cell begins from, if it has one."""
        return self.warm[job.warm] if isinstance(job, Cell) and job.warm else None

    def _trials(self, task: str, setting: str, method: str) -> dict[int, Values]:
        """The configurations of a method on a task in a setting, by trial; a bad one is refused here."""
        suite, chosen = self.suite, self.suite.methods[method]
        shared = merge(merge(suite.base, suite.all_tasks[task]), suite.settings[setting])
        where = f"the suite's run {suite.name}, {task}, {setting}, {method}"
        result = {}
        for index, (values, lr_factor) in list(enumerate(suite.trials(setting, method))) or [(NO_TRIAL, ({}, 1.0))]:
            config = {"advantage": chosen.advantage} | shared | {"objective": chosen.objective | values}
            try:
                checked = train_config(config)
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from None
            if lr_factor != 1:
                config = merge(config, {"update": {"lr": checked.update.lr * lr_factor}})
            result[index] = config
        return result

    def _starts(self, task: str, setting: str) -> list[str]:
        """The keys of a task's warm starts; a setting has its own only if it changes the model or the warm-up."""
        suite, keys = self.suite, []
        own = {key: value for key, value in suite.settings[setting].items() if key in ("model", "warmup")}
        values = merge(merge(suite.base, suite.all_tasks[task]), own)
        for number in range(suite.warm_starts if train_config(values).warmup else 0):
            config = {key: value for key, value in values.items() if key != "advantage"} | {"seed": number}
            keys.append("warm-" + _digest(config))
            self.warm.setdefault(keys[-1], WarmStart(task, config, keys[-1]))
        return keys


def _cell(combination: Combination, trial: int, config: Values, starts: list[str], number: int, phase: Phase) -> Cell:
    """The cell of the seed of this number, counted from 0 in the tuning and in the test."""
    split = "validation" if phase == "tune" else "eval"
    seed = number + (FIRST_TUNING_SEED if phase == "tune" else 0)
    start = number % len(starts) if starts else 0
    config = merge(config, {"seed": seed, "eval": {"split": split}})
    warm = starts[start] if starts else None
    return Cell(*combination, trial, seed, phase, config, warm, start, key_of(config, start))


def train_config(config: Values) -> TrainConfig:
    """The configuration of a cell: one process, one thread, no sample answers, and only the last checkpoint."""
    values = merge({"processes": 1, "model": {"threads": 1}}, config)
    kept = {"log": {"samples": 0, "records": True}, "checkpoint": {"every": TrainConfig(**values).steps, "keep": 1}}
    return TrainConfig(**merge(values, kept))


def key_of(config: Values, warm_start: int) -> str:
    """The key of a cell, from what was set."""
    return _digest([SCHEMA_VERSION, config, warm_start])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
