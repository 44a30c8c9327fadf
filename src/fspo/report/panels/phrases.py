"""Phrases that several panels share."""

from __future__ import annotations

from collections.abc import Sequence

from fspo.report.report_run import ReportRun
from fspo.text import percent

ON_POLICY = "Every update so far was on-policy: S is 0, so clipping cannot act and there is nothing to compare."
NO_ROWS = "There are no rows of single answers yet."
NO_GRADIENT = "Every advantage of these steps is 0: no answer has a gradient that clipping could remove."

MOST_RANGES = 6


def why_no_clipping(run: ReportRun) -> str:
    """Why there is nothing to show about clipping."""
    if run.rows is None:
        return NO_ROWS
    return NO_GRADIENT if run.rows.off_policy and run.rows.last_with_gradient.is_empty() else ON_POLICY


def of_run(title: str, run: ReportRun, runs: Sequence[ReportRun]) -> str:
    """The title of a plot that each run has for itself."""
    return title if len(runs) == 1 else f"{title} – {run.name}"


def range_name(low: float, high: float) -> str:
    return f"{low:g}" if low == high else f"{low:g}–{high:g}"


def between(steps: tuple[float, float]) -> str:
    return f"step {steps[0]:g}" if steps[0] == steps[1] else f"steps {steps[0]:g} to {steps[1]:g}"


def step_ranges(steps: Sequence[int]) -> str:
    """[1, 2, 3, 7] -> 1–3, 7; of many ranges the first and the last ones."""
    ranges: list[tuple[int, int]] = []
    for step in steps:
        if ranges and step == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], step)
        else:
            ranges.append((step, step))
    names = [range_name(*pair) for pair in ranges]
    half = MOST_RANGES // 2
    return ", ".join(names if len(names) <= MOST_RANGES else [*names[:half], "…", *names[-half:]])


def with_interval(value: float | None, interval: tuple[float, float] | None) -> str:
    return f"{percent(value)} ({percent(interval[0])} to {percent(interval[1])})" if interval else percent(value)
