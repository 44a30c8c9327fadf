"""The result of an audit as plain objects that print, and that turn into JSON and HTML."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

from fspo.audits.methods import Comparison
from fspo.audits.mismatch import MismatchAudit
from fspo.audits.recommend import Recommendation
from fspo.fairness import FAIR, FEW, Bin, FairnessReport, Interval, ScalingLaw
from fspo.files import json_text, plain, replace_file
from fspo.text import percent


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
    sampled: int  # rows behind the comparison of methods, the gradient shares and the spans
    unit: str  # of length: tokens or characters
    confidence: float
    verdict: str
    own_rule: str
    own: FairnessReport | None  # by length
    attribute: FairnessReport | None  # by another column
    clip_rate: float | None  # at which the methods are compared
    methods: list[Comparison]
    law: ScalingLaw | None
    ess: float | None
    lengths: list[LengthRow]
    spans: list[Span]
    recommendation: Recommendation | None
    mismatch: MismatchAudit | None  # of log-probs of sampler and trainer
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int = 100) -> str:
        """The audit for a terminal of this width."""
        from fspo.audits import show

        return show.text(self, width)

    @property
    def headline(self) -> str:
        """The verdict as a sentence."""
        return f"{self.verdict[0].upper()}{self.verdict[1:]}."

    @property
    def alarming(self) -> bool:
        """Whether the verdict asks for a change."""
        return self.verdict.startswith(("unfair", "too much"))

    def to_dict(self) -> dict[str, Any]:
        """All figures as plain values; NaN, and a rate of too few rows, is None."""
        figures: dict[str, Any] = plain(_fields(self))
        return figures

    def to_json(self) -> str:
        return json_text(self.to_dict(), indent=1)

    def write_json(self, path: str | Path) -> None:
        replace_file(path, self.to_json() + "\n")

    def write_html(self, path: str | Path) -> None:
        from fspo.audits import show

        replace_file(path, show.page(self))


def verdict(report: FairnessReport | None) -> str:
    """Fair, unfair or cannot tell, and why."""
    if report is None:
        return "cannot tell how fair the run's own clipping is: see the notes"
    if not report.clip_rate:
        count = sum(b.count for b in report.bins)
        return f"nothing was clipped: the rule left all {count:,} gradients as they are, so there is nothing to judge"
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
