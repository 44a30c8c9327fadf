"""The runs of a suite in order, for the table and for the figures."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

from fspo.comparing.clipping import Clipping, clipping
from fspo.comparing.statistics import Group, Row, groups
from fspo.report.text import slug


class Results:
    """Groups of runs by place (a task in a setting) and by method; with all trials, each is a method of its own."""

    def __init__(self, rows: Iterable[Row], suite: Any) -> None:
        self.suite = suite
        self.groups = groups(rows, suite)
        self.methods: list[str] = list(suite.methods)
        self.tasks = [task for task in suite.tasks if any(g.task == task for g in self.groups)]
        self.settings = [s for s in suite.settings if any(g.setting == s for g in self.groups)]
        self.rows = [row for group in self.groups for row in group.rows]

    @cached_property
    def labels(self) -> list[str]:
        """Of the methods that have runs, in the suite's order."""
        order = {g.label: (self.methods.index(g.method), -1 if g.trial is None else g.trial) for g in self.groups}
        return sorted(order, key=lambda label: order[label])

    @cached_property
    def places(self) -> dict[tuple[str, str], str]:
        """A name of every place, no two of which read the same in a file's name."""
        places = dict.fromkeys((group.task, group.setting) for group in self.groups)
        one = len(self.suite.settings) == 1
        return dict(zip(places, _apart([task if one else f"{task}, {s}" for task, s in places]), strict=True))

    @cached_property
    def setting_names(self) -> dict[str, str]:
        """The same for settings."""
        return dict(zip(self.settings, _apart(self.settings), strict=True))

    def at(self, place: tuple[str, str]) -> list[Group]:
        return [g for g in self.groups if (g.task, g.setting) == place]

    def of(self, label: str, setting: str) -> list[Group]:
        """A method's groups in a setting, one a task."""
        return [g for g in self.groups if g.label == label and g.setting == setting]

    def clipping(self, group: Group) -> Clipping | None:
        key = id(group)
        if key not in self._clipping:
            self._clipping[key] = clipping(group)
        return self._clipping[key]

    @cached_property
    def _clipping(self) -> dict[int, Clipping | None]:
        return {}

    def clippings(self, label: str, setting: str) -> list[Clipping]:
        return [c for c in map(self.clipping, self.of(label, setting)) if c is not None]


def _apart(names: Iterable[str]) -> list[str]:
    """The names, numbered where one reads like another in a file's name."""
    found: list[str] = []
    taken: set[str] = set()
    for k, name in enumerate(names):
        found.append(f"{name} ({k + 1})" if slug(name) in taken else name)
        taken.add(slug(found[-1]))
    return found
