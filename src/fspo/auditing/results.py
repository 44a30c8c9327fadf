"""What an audit finds, as plain objects that print, and turn into JSON and HTML."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

from fspo.auditing.methods import Comparison
from fspo.auditing.recommend import Recommendation
from fspo.fairness.measure import Bin, FairnessReport, Interval
from fspo.fairness.scaling import ScalingLaw

FEW = 30  # a bin with fewer rows gets no rate
TOLERANCE = 0.05  # an LRE up to here is called fair


@dataclass(frozen=True)
class Shape:
    """How close z is to a Gaussian."""

    skewness: float
    excess_kurtosis: float
    distance: float  # largest difference of the distribution functions
    margin: float  # how far chance alone moves the distance, at the audit's confidence
    verdict: str


@dataclass(frozen=True)
class LengthRow:
    """What a bin of lengths holds, clipped or not."""

    label: str
    count: int
    truncated: float | None = None
    truncated_interval: Interval | None = None
    reward: float | None = None
    gradient: float | None = None  # share of the token gradients' size, before clipping
    kept: float | None = None  # ... and of what clipping leaves
    kept_interval: Interval | None = None


@dataclass(frozen=True)
class Span:
    """A stretch of training."""

    first: float
    last: float
    count: int
    mean_length: float
    clip_rate: float | None = None
    interval: Interval | None = None
    lre: float | None = None
    lre_interval: Interval | None = None
    mu: float | None = None
    sigma: float | None = None
    ess: float | None = None


@dataclass(frozen=True)
class Audit:
    """The answers; print it for the table, or use `to_dict`, `write_json` and `write_html`."""

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
    shape: Shape | None
    ess: float | None
    lengths: list[LengthRow]
    spans: list[Span]
    recommendation: Recommendation | None
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        from fspo.auditing.text import render

        return render(self)

    @property
    def headline(self) -> str:
        """The verdict as a sentence."""
        return f"{self.verdict[0].upper()}{self.verdict[1:]}."

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values: NaN and arrays are left out, a rate that cannot be told is null."""
        plain: dict[str, Any] = _plain(self)
        return plain

    def write_json(self, path: str | Path) -> None:
        Path(path).write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")

    def write_html(self, path: str | Path) -> None:
        from fspo.auditing.page import render

        Path(path).write_text(render(self), encoding="utf-8")


def _plain(value: Any) -> Any:
    if isinstance(value, Comparison):
        return _plain({"name": value.name, "parameters": value.parameters, "note": value.note, "report": value.report})
    if isinstance(value, Bin):
        known = value.count >= FEW
        row = asdict(value) | {"clip_rate": value.clip_rate, "cannot_tell": not known}
        if not known:
            row |= dict.fromkeys(("acceptance", "interval", "reweighting", "clip_rate"))
        return _plain(row)
    if is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
