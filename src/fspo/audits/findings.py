"""The result of an audit as plain objects that print, and that turn into JSON and HTML."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

from fspo.audits.recommend import Recommendation
from fspo.fairness import FAIR, FEW, Bin, FairnessReport, Interval, ScalingLaw
from fspo.files import json_text, plain, replace_file
from fspo.text import percent


@dataclass(frozen=True)
class Comparison:
    """One method at the common clip rate: its range and its report, or a note why it has none."""

    name: str
    parameters: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    report: FairnessReport | None = None


@dataclass(frozen=True)
class GaussianFit:
    """How close z is to a Gaussian."""

    skewness: float
    excess_kurtosis: float
    distance: float  # largest difference of the distribution functions
    margin: float  # how far chance alone moves the distance, at the audit's confidence
    verdict: str


@dataclass(frozen=True)
class LengthRow:
    """A bin of lengths, on-policy rows and rows without a gradient included."""

    label: str
    count: int
    truncated: float | None = None
    truncated_interval: Interval | None = None
    reward: float | None = None
    gradient: float | None = None  # share of the size of all token gradients, before clipping
    kept: float | None = None  # ... and after clipping
    kept_interval: Interval | None = None


@dataclass(frozen=True)
class Span:
    """A stretch of training steps."""

    first: float
    last: float
    count: int
    mean_length: float
    clip_rate: float | None = None
    interval: Interval | None = None  # of the clip rate
    lre: float | None = None
    lre_interval: Interval | None = None
    mu: float | None = None
    sigma: float | None = None
    ess: float | None = None


@dataclass(frozen=True)
class Audit:
    """All figures of an audit. Print it for the tables, or use `to_dict`, `write_json` and `write_html`."""

    name: str  # of the data, as it was given
    files: list[str]
    rows: int
    on_policy: int
    sampled: int  # rows behind the comparison of methods, the shape, the gradient shares and the drift
    unit: str  # of length: tokens or characters
    confidence: float
    verdict: str
    own_rule: str
    own: FairnessReport | None  # by length
    attribute: FairnessReport | None  # by another column
    clip_rate: float | None  # at which the methods are compared
    methods: list[Comparison]
    law: ScalingLaw | None
    shape: GaussianFit | None
    ess: float | None
    lengths: list[LengthRow]
    spans: list[Span]
    recommendation: Recommendation | None
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        from fspo.audits.audit_text import render

        return render(self)

    @property
    def headline(self) -> str:
        """The verdict as a sentence."""
        return f"{self.verdict[0].upper()}{self.verdict[1:]}."

    def to_dict(self) -> dict[str, Any]:
        """All figures as plain values; NaN, and a rate of too few rows, is None."""
        figures: dict[str, Any] = plain(_fields(self))
        return figures

    def to_json(self) -> str:
        return json_text(self.to_dict(), indent=1)

    def write_json(self, path: str | Path) -> None:
        replace_file(path, self.to_json() + "\n")

    def write_html(self, path: str | Path) -> None:
        from fspo.audits.audit_page import render

        replace_file(path, render(self))


def verdict(report: FairnessReport | None) -> str:
    """Fair, unfair or cannot tell, and why."""
    if report is None:
        return "cannot tell how fair the run's own clipping is: see the notes"
    small = min(report.bins, key=lambda b: b.count)
    if small.count < FEW:
        rows = "1 row" if small.count == 1 else f"{small.count} rows"
        fix = "join it with another, or leave it out" if math.isnan(small.low) else "use fewer bins"
        return f"cannot tell: the bin {small.label} has {rows}, and a rate needs {FEW}: {fix}"
    if len(report.bins) == 1 and small.low < small.high:
        return "cannot tell: one bin has nothing to compare with: use --bins 2 or more"
    if len(report.bins) == 1:
        return f"cannot tell: all rows have the {report.attribute} {small.label}, so there is nothing to compare"
    (low, high), worst = report.lre_interval, max(report.bins, key=lambda b: abs(b.reweighting - 1))
    if low > FAIR:
        return (
            f"unfair: {report.attribute} {worst.label} is clipped {percent(worst.clip_rate)} against "
            f"{percent(report.clip_rate)} overall, an LRE of {report.lre:.3f} ({low:.3f} to {high:.3f})"
        )
    if high <= FAIR:
        return f"fair: every bin's acceptance is within {percent(high)} of the average"
    return f"cannot tell: the LRE is between {low:.3f} and {high:.3f}, and fair means at most {FAIR:g}"


def _fields(value: Any) -> Any:
    """Dataclasses as dictionaries; a bin with the rates that follow from its fields."""
    if isinstance(value, Bin):
        row = asdict(value) | {"clip_rate": value.clip_rate, "clip_interval": value.clip_interval}
        if value.count < FEW:
            row |= dict.fromkeys(("acceptance", "interval", "reweighting", "clip_rate", "clip_interval"))
        return row | {"cannot_tell": value.count < FEW}
    if is_dataclass(value) and not isinstance(value, type):
        return {name: _fields(getattr(value, name)) for name in value.__dataclass_fields__}
    return [_fields(item) for item in value] if isinstance(value, list) else value
