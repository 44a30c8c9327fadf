"""The test runs of a suite in groups, for the tables and the figures."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property

from fspo.comparisons.plan import Row
from fspo.comparisons.pooled_clipping import Clipping, clipping
from fspo.comparisons.seed_statistics import RunGroup
from fspo.comparisons.suite import Suite
from fspo.text import slug

__all__ = ["SuiteResults"]


class SuiteResults:
    """Groups of runs by place (a task in a setting) and method; where every trial is run, each has its own group."""

    def __init__(self, rows: Iterable[Row], suite: Suite) -> None:
        self.suite = suite
        self.groups = _groups(rows, suite)
        self.methods: list[str] = list(suite.methods)
        self.tasks = [task for task in suite.all_tasks if any(g.task == task for g in self.groups)]
        self.settings = [s for s in suite.settings if any(g.setting == s for g in self.groups)]
        self.rows = [row for group in self.groups for row in group.rows]
        self._clipping: dict[int, Clipping | None] = {}

    @cached_property
    def labels(self) -> list[str]:
        """The methods (or trials) that have runs, in the suite's order."""
        order = {g.label: (self.methods.index(g.method), -1 if g.trial is None else g.trial) for g in self.groups}
        return sorted(order, key=lambda label: order[label])

    @cached_property
    def places(self) -> dict[tuple[str, str], str]:
        """The name of each place; no two give the same file name."""
        places = dict.fromkeys((group.task, group.setting) for group in self.groups)
        one = len(self.suite.settings) == 1
        return dict(zip(places, _distinct([task if one else f"{task}, {s}" for task, s in places]), strict=True))

    @cached_property
    def setting_names(self) -> dict[str, str]:
        """The name of each setting; no two give the same file name."""
        return dict(zip(self.settings, _distinct(self.settings), strict=True))

    def at(self, place: tuple[str, str]) -> list[RunGroup]:
        return [g for g in self.groups if (g.task, g.setting) == place]

    @cached_property
    def parts(self) -> dict[str, list[str]]:
        """The tasks that have runs, the confirming ones apart, by the word that describes them."""
        if not self.suite.confirm:
            return {"": self.tasks}
        kinds = {"choosing ": self.suite.tasks, "confirming ": self.suite.confirm}
        parts = {kind: [task for task in self.tasks if task in known] for kind, known in kinds.items()}
        return {kind: tasks for kind, tasks in parts.items() if tasks}

    def of(self, label: str, setting: str, tasks: Collection[str] | None = None) -> list[RunGroup]:
        """The groups of a method in a setting, one per task; of all tasks or of these."""
        return [
            g for g in self.groups if g.label == label and g.setting == setting and (tasks is None or g.task in tasks)
        ]

    def clipping(self, group: RunGroup) -> Clipping | None:
        """Computed once per group."""
        key = id(group)
        if key not in self._clipping:
            self._clipping[key] = clipping(group)
        return self._clipping[key]

    def clippings(self, label: str, setting: str, tasks: Collection[str] | None = None) -> list[Clipping]:
        return [c for c in map(self.clipping, self.of(label, setting, tasks)) if c is not None]


def _groups(rows: Iterable[Row], suite: Suite) -> list[RunGroup]:
    """The runs of phase test in the suite's order, by seed; rows of other tasks, settings or methods are left out."""
    found: dict[tuple[str, str, str, int | None], dict[int, Row]] = {}
    for row in rows:
        if row["phase"] == "test":
            trial = row["trial"] if suite.tuning.all else None
            found.setdefault((row["task"], row["setting"], row["method"], trial), {})[row["seed"]] = row
    orders = [{name: k for k, name in enumerate(names)} for names in (suite.all_tasks, suite.settings, suite.methods)]

    def position(key: tuple[str, str, str, int | None]) -> tuple[int, ...]:
        return (*(order[name] for order, name in zip(orders, key[:3], strict=True)), -1 if key[3] is None else key[3])

    known = [key for key in found if all(name in order for order, name in zip(orders, key[:3], strict=True))]
    return [
        RunGroup(*key[:3], [found[key][seed] for seed in sorted(found[key])], key[3])
        for key in sorted(known, key=position)
    ]


def _distinct(names: Iterable[str]) -> list[str]:
    """The names, numbered where two would give the same file name."""
    found: list[str] = []
    taken: set[str] = set()
    for k, name in enumerate(names):
        found.append(f"{name} ({k + 1})" if slug(name) in taken else name)
        taken.add(slug(found[-1]))
    return found
