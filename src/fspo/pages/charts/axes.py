"""Scales of the axes: round ticks, their labels, and the range that holds the values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

Numbers = Sequence[float | None]
Format = Callable[[float], str]


def finite(value: float | None) -> bool:
    """Whether there is a value that can be drawn."""
    return value is not None and math.isfinite(value)


def ticks(low: float, high: float, most: int = 6, whole: bool = False) -> list[float]:
    """Round numbers within [low, high]."""
    rough = (high - low) / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough * 0.999)
    if whole:
        step = max(1.0, 2.0 if step == 2.5 else float(math.ceil(step)))
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first
    return [0.0 if first + k == 0 else (first + k) * step for k in range(count + 1)]


def log_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """log10 of the round numbers between 10^low and 10^high: 1, 2 and 5 of each decade, or fewer."""
    found: list[float] = []
    for steps in ((1, 2, 5), (1, 3), (1,)):
        decades = range(math.floor(low), math.ceil(high) + 1)
        found = [math.log10(m) + k for k in decades for m in steps if low - 1e-9 <= math.log10(m) + k <= high + 1e-9]
        if len(found) <= most:
            return found
    return found[:: math.ceil(len(found) / most)]


def formatter(values: Sequence[float]) -> Format:
    """Labels of an axis, all with the same number of decimals: as many as tell them apart."""
    size = max((abs(v) for v in values), default=1.0)
    step = min((abs(b - a) for a, b in pairwise(values)), default=size) or 1.0
    if size and (size < 1e-3 or size >= 1e6):
        return lambda v: f"{v:.1e}".replace("e-0", "e-").replace("e+0", "e").replace("-", "−") if v else "0"
    decimals = next((d for d in range(7) if abs(round(step, d) - step) < 1e-6 * step), 6)
    return lambda v: f"{v:,.{decimals}f}".replace("-", "−")


def percent_formatter(values: Sequence[float]) -> Format:
    """The same for shares, shown in percent."""
    step = min((b - a for a, b in pairwise(values)), default=0.1)
    digits = next((d for d in range(5) if abs(round(100 * step, d) - 100 * step) < 1e-6), 4)
    return lambda v: f"{100 * v:.{digits}f} %".replace("-", "−")


def span(values: Sequence[float], zero: bool, top: float | None = None, whole: bool = False) -> tuple[float, float]:
    """An axis that holds the values: from zero if asked, ending on round numbers, never beyond `top`."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if zero:
        low, high = min(0.0, low), max(0.0, high)
    if high - low < 1e-12 * max(1.0, abs(high)):
        pad = abs(high) * 0.1 or (top or 1.0)
        low, high = (low if zero and low == 0 else low - pad), high + pad
    marks = ticks(low, high, 5, whole)
    step = marks[1] - marks[0] if len(marks) > 1 else high - low
    low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    return low, (min(high, top) if top is not None and max(values, default=0.0) <= top else high)


def mean(values: Numbers) -> float | None:
    """The mean of the values that there are; None if there are none."""
    kept = [v for v in values if v is not None and math.isfinite(v)]
    return sum(kept) / len(kept) if kept else None


def running_mean(values: Numbers, width: int) -> Numbers:
    """The mean of `width` values around each; gaps stay gaps."""
    half = width // 2
    return [mean(values[max(0, k - half) : k + half + 1]) if finite(v) else None for k, v in enumerate(values)]
