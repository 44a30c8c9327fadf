"""A run as its page shows it: what `fspo.runs` reads from the folder, and a summary of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from fspo import objectives, runs
from fspo.report.row_summary import RowSummary, summarise
from fspo.runs import Metrics, Run

__all__ = ["ReportRun", "load", "load_all"]


@dataclass(frozen=True)
class ReportRun(Run):
    """A run and its rows."""

    rows: RowSummary | None = None

    @property
    def last_metrics(self) -> list[Metrics]:
        """The metrics of the last steps, which `rows.last` is of."""
        if self.rows is None:
            return []
        first, last = self.rows.last_steps
        return [line for line in self.metrics if first <= line.step <= last]


def load(folder: str | Path, *, trust: bool = False) -> ReportRun:
    """Read a run folder; `trust` allows its configuration to import the objective that it names as `module:Class`."""
    return _with_rows(runs.load(folder), trust)


def load_all(folders: Sequence[str | Path], *, trust: bool = False) -> list[ReportRun]:
    """Read several run folders; each run gets a name of its own."""
    return [_with_rows(run, trust) for run in runs.load_all(folders)]


def _with_rows(run: Run, trust: bool) -> ReportRun:
    rows, notes = summarise(run.folder)
    if trust and ":" in (name := str(run.objective.get("name", ""))):
        try:
            objectives.get_class(name)
        except ValueError as error:
            notes = [*notes, f"{error}."]
    known = {field.name: getattr(run, field.name) for field in fields(Run)}
    return replace(ReportRun(**known), rows=rows, notes=[*run.notes, *notes])
