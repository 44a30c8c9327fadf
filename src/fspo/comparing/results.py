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
        names: dict[tuple[str, str], str] = {}
        taken: set[str] = set()
        for group in self.groups:
            place = (group.task, group.setting)
            if place in names:
                continue
            name = group.task if len(self.suite.settings) == 1 else f"{group.task}, {group.setting}"
            if slug(name) in taken:
                name = f"{name} ({len(names) + 1})"
            taken.add(slug(name))
            names[place] = name
        return names

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
