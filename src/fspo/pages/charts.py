"""Charts as SVG, drawn without a library and readable without a script, in colours from the page's CSS variables.

Every chart has a title and a description for screen readers, and axes that start at 0 or state where they start.
A value that is None (or not finite) is a gap, never a zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeGuard

from markupsafe import Markup

from fspo.fairness import Bin
from fspo.pages.document import coordinate as n
from fspo.pages.document import render
from fspo.text import escape, percent, short, slug

__all__ = [
    "MOST_POINTS", "Bars", "Series", "bars", "finite", "formatter", "known", "line", "mean", "span", "thin", "ticks",
]  # fmt: skip


# --- Scales of the axes ---

WIDTH, HEIGHT = 420, 264
LETTER = 6.3  # width of a character at the charts' font size, to leave space for texts
MOST_POINTS = 400  # of a line

Numbers = Sequence[float | None]
Format = Callable[[float], str]


def finite(value: float | None) -> TypeGuard[float]:
    """Whether there is a value that can be drawn; the difference of larger ones may be beyond every float."""
    return value is not None and abs(value) < 1e300


def known(values: Iterable[float | None]) -> list[float]:
    """The values that can be drawn."""
    return [v for v in values if finite(v)]


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


def formatter(values: Sequence[float], percent: bool = False) -> Format:
    """Labels of an axis, all with the same number of decimals: as many as tell them apart."""
    factor, unit = (100, " %") if percent else (1, "")
    size = max((abs(v) for v in values), default=1.0)
    if not percent and size and (size < 1e-3 or size >= 1e6):
        return lambda v: f"{v:.1e}".replace("e-0", "e-").replace("e+0", "e").replace("-", "−") if v else "0"
    step = factor * min((abs(b - a) for a, b in pairwise(values)), default=size) or 1.0
    decimals = next((d for d in range(7) if abs(round(step, d) - step) < 1e-6 * step), 6)
    return lambda v: f"{factor * v:,.{decimals}f}{unit}".replace("-", "−")


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
    kept = known(values)
    return sum(kept) / len(kept) if kept else None


def running_mean(values: Numbers, width: int) -> Numbers:
    """The mean of `width` values around each; gaps stay gaps."""
    half = width // 2
    return [mean(values[max(0, k - half) : k + half + 1]) if finite(v) else None for k, v in enumerate(values)]


# --- The frame of a chart: axes, grid and legend ---


@dataclass
class Frame:
    """Axes and their scales. Charts add to `parts`, in the coordinates that `px` and `py` give."""

    title: str
    description: str
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    x_label: str = ""
    y_label: str = ""
    percent: bool = False  # whether the numbers of y are shares
    whole_x: bool = True
    legend: Sequence[tuple[str, str]] = ()  # label, SVG of a 14 x 10 key
    x_names: Sequence[str] | None = None  # names instead of numbers: one band each
    height: int = HEIGHT
    width: int = WIDTH
    parts: list[str] = field(default_factory=list)  # inside the axes; what lies outside is cut off

    def __post_init__(self) -> None:
        self.legend_rows = self._legend()
        self.top = 12 + 18 * self.legend_rows + (20 if self.y_label else 0)
        self.bottom = self.height - (40 if self.x_label else 24)
        self.y_ticks = ticks(*self.y_range, most=6)
        self.y_texts = list(map(formatter(self.y_ticks, self.percent), self.y_ticks))
        self.left = 12 + LETTER * max((len(t) for t in self.y_texts), default=1)
        self.right = self.width - 12

    def px(self, x: float) -> float:
        low, high = self.x_range
        return self.left + (x - low) / (high - low) * (self.right - self.left)

    def py(self, y: float) -> float:
        low, high = self.y_range
        return self.bottom - (y - low) / (high - low) * (self.bottom - self.top)

    def _legend(self) -> int:
        """Lay the legend out in rows; returns how many."""
        self.keys: list[tuple[float, int, str, Markup]] = []  # x, y, label, SVG
        x, row = 4.0, 0
        for label, key in self.legend:
            width = 26 + LETTER * len(label)
            if x > 4 and x + width > self.width:
                x, row = 4.0, row + 1
            self.keys.append((x, 4 + 18 * row, label, Markup(key)))
            x += width + 6
        return row + 1 if self.legend else 0

    def svg(self) -> Markup:
        """The chart. Texts in `parts` and in the keys have been escaped; the template escapes the others."""
        corners = (self.left, self.right, self.top, self.bottom, *self.x_range, *self.y_range)
        texts = zip(self.y_ticks, self.y_texts, strict=True)
        y_marks = [(self.py(value), text, "grid" if value else "axis") for value, text in texts]
        return render(
            "chart.html", frame=self, name=slug(self.title), geometry=" ".join(f"{v:.6g}" for v in corners),
            x_marks=self._x_marks(), y_marks=y_marks, inside=Markup("".join(self.parts)),
        )  # fmt: skip

    def _x_marks(self) -> list[tuple[float, str, float]]:
        """Position and text of each mark, and the middle of the text, which must stay inside the chart."""
        low, high = self.x_range
        if self.x_names is not None:
            marks = [k + 0.5 for k in range(len(self.x_names))]
            texts = list(self.x_names)
        else:
            marks = ticks(low, high, most=7, whole=self.whole_x)
            texts = list(map(formatter(marks), marks))
        # Every second or third name and so on, where not all of them fit.
        widest = LETTER * max((len(t) for t in texts), default=1) + 8
        space = (self.right - self.left) / max(1, len(marks) if self.x_names is not None else len(marks) - 1)
        every = max(1, math.ceil(widest / space))
        shown = list(zip(map(self.px, marks), texts, strict=True))[::every]
        return [(x, text, min(x, self.width - LETTER * len(text) / 2 - 1)) for x, text in shown]


def _said(value: float | None, interval: Sequence[float | None], form: Callable[[float | None], str]) -> str:
    """A value and its interval, for a tooltip."""
    if not finite(value):
        return "no value"
    ends = f" ({form(interval[0])} to {form(interval[1])})" if all(map(finite, interval)) else ""
    return form(value) + ends


def stretches(rows: Sequence[tuple[float, ...] | None]) -> list[list[tuple[float, ...]]]:
    """Stretches without a gap."""
    runs: list[list[tuple[float, ...]]] = [[]]
    for row in rows:
        if row is None:
            runs.append([])
        else:
            runs[-1].append(row)
    return [run for run in runs if run]


def path(frame: Frame, x: Sequence[float], y: Numbers, kind: str, label: str = "") -> str:
    """A line with gaps; the script reads values under the pointer from a line that has a label."""
    runs = stretches([(a, b) if finite(b) else None for a, b in zip(x, y, strict=True)])
    name = f' data-label="{escape(label)}"' if label else ""
    # A stretch of one point is drawn as a dot: a line of no length with round ends.
    d = "".join(
        "M" + " ".join(f"{n(frame.px(a))} {n(frame.py(b))}" for a, b in run) + ("h0" if len(run) == 1 else "")
        for run in runs
    )
    return f'<path class="{kind}"{name} d="{d}"/>' if d else ""


# --- Lines ---


@dataclass(frozen=True)
class Series:
    """A line, with a band between `low` and `high` where they are given. Without a label it is not in the legend."""

    label: str
    x: Sequence[float]
    y: Numbers
    low: Numbers | None = None
    high: Numbers | None = None
    colour: int = 1
    dots: bool = False  # at each point, with the interval as an error bar instead of a band
    smooth: bool = False  # the values as a faint line, their running mean as a strong one
    dashed: bool = False  # with hollow dots
    cloud: bool = False  # points without a line
    cut_off: bool = False  # may leave the chart: the axes ignore it


def thin(series: Series) -> tuple[Series, int]:
    """At most MOST_POINTS points, each the mean of a span of steps, and the span's length; a cloud is unchanged."""
    n = len(series.x)
    width = math.ceil(n / MOST_POINTS)
    if width <= 1 or series.cloud:
        return series, 1

    def means(values: Numbers | None) -> Numbers | None:
        return None if values is None else [mean(values[k : k + width]) for k in range(0, n, width)]

    x = [sum(part) / len(part) for part in (series.x[k : k + width] for k in range(0, n, width))]
    y = means(series.y)
    assert y is not None
    return replace(series, x=x, y=y, low=means(series.low), high=means(series.high)), width


def line(
    title: str,
    description: str,
    series: Sequence[Series],
    x_label: str = "step",
    y_label: str = "",
    *,
    zero: bool = True,
    top: float | None = None,
    percent_axis: bool = False,
    height: int = HEIGHT,
    width: int = WIDTH,
    x_names: Sequence[str] | None = None,
) -> Markup:
    """Lines over steps. The axis starts at zero unless `zero` is off; `top` is the largest possible value.

    With names instead of numbers on the x axis, the k-th is at k + 0.5.
    """
    thinned = [thin(s) for s in series]
    spans = max(width for _, width in thinned)
    series = [s for s, _ in thinned]
    xs = [float(v) for s in series for v in s.x]
    ys = known(v for s in series if not s.cut_off for values in (s.y, s.low or (), s.high or ()) for v in values)
    first, last = (min(xs), max(xs)) if xs else (0.0, 1.0)
    if x_names is not None:
        first, last = 0.0, float(len(x_names))
    elif any(s.dots for s in series):  # a margin, so that no dot lies on the axis
        first, last = first - 0.02 * (last - first), last + 0.02 * (last - first)
    frame = Frame(
        title,
        description + (f" Each point is the mean of {spans} steps." if spans > 1 else ""),
        (first, last) if last > first else (first - 1, last + 1),
        span(ys, zero, top),
        x_label + (f" (means of {spans})" if spans > 1 else ""),
        y_label,
        percent_axis,
        whole_x=all(x == round(x) for x in xs),
        x_names=x_names,
        legend=[(s.label, _key(s)) for s in series if s.label and len(series) > 1],
        height=height,
        width=width,
    )
    for s in series:
        frame.parts.append(_drawn(frame, s, x_label, percent if percent_axis else short))
    return frame.svg()


def _key(s: Series) -> str:
    """The key of a line or a cloud in the legend."""
    if s.cloud:
        return f'<path class="dots big c{s.colour}" d="M7 5h0"/>'
    return f'<path class="line c{s.colour}{" dashed" * s.dashed}" d="M0 5h14"/>'


def _drawn(frame: Frame, s: Series, x_label: str, form: Callable[[float | None], str]) -> str:
    out = []
    px, py = frame.px, frame.py
    if s.cloud:
        points = [f"M{n(px(x))} {n(py(y))}h0" for x, y in zip(s.x, s.y, strict=True) if finite(y)]
        return f'<path class="dots c{s.colour}" d="{"".join(points)}"/>'
    count = len(known(s.y))
    if len(s.x) < 3 and s.label:  # a line or a band of so few points would not be visible
        s = replace(s, dots=True)
    if s.low is not None and s.high is not None:
        rows = list(zip(s.x, s.low, s.high, strict=True))
        if s.dots:
            for x, low, high in rows:
                if finite(low) and finite(high):
                    out.append(f'<path class="whisker own c{s.colour}" d="M{n(px(x))} {n(py(low))}V{n(py(high))}"/>')
        else:
            for run in stretches([(x, a, b) if finite(a) and finite(b) else None for x, a, b in rows]):
                upper = " ".join(f"{n(px(x))} {n(py(b))}" for x, _, b in run)
                lower = " ".join(f"{n(px(x))} {n(py(a))}" for x, a, _ in reversed(run))
                out.append(f'<path class="band c{s.colour}" d="M{upper} {lower}Z"/>')
    smooth = s.smooth and count >= 20
    dashed = " dashed" * s.dashed
    out.append(path(frame, s.x, s.y, f"line c{s.colour}{' faint' if smooth else ''}{dashed}", s.label))
    if smooth:
        width = 2 * max(1, count // 30) + 1
        out.append(path(frame, s.x, running_mean(s.y, width), f"line strong c{s.colour}{dashed}"))
    if s.dots:
        lows, highs = s.low or [None] * len(s.x), s.high or [None] * len(s.x)
        for x, y, low, high in zip(s.x, s.y, lows, highs, strict=True):
            if finite(y):
                x_text = f"{x_label} {x:g}" if frame.x_names is None else frame.x_names[int(x)]
                out.append(
                    f'<circle class="dot{" hollow" * s.dashed} c{s.colour}" cx="{n(px(x))}" cy="{n(py(y))}" r="3">'
                    f"<title>{escape(f'{s.label}, {x_text}: {_said(y, (low, high), form)}')}</title></circle>"
                )
    return "".join(out)


# --- Bars ---


@dataclass(frozen=True)
class Bars:
    """The clip rates of bins of answers, with error bars; a bin of fewer than `few` answers has no bar."""

    label: str
    bins: Sequence[Bin]
    colour: int = 1
    few: int = 1

    def rate(self, k: int) -> float | None:
        return self.bins[k].clip_rate if self.bins[k].count >= self.few else None


def bars(
    title: str,
    description: str,
    groups: Sequence[Bars],
    x_label: str,
    y_label: str,
    *,
    reference: tuple[str, float] | None = None,
) -> Markup:
    """Rates of several rules in the same bins; `reference` is a dashed line across all bars."""
    names = [b.label for b in groups[0].bins]
    ys = known(v for g in groups for k, b in enumerate(g.bins) if g.rate(k) is not None for v in b.clip_interval)
    legend = []
    if len(groups) > 1 or reference:
        legend = [(g.label, f'<rect class="bar c{g.colour}" width="14" height="10" rx="2"/>') for g in groups]
    if reference:
        ys.append(reference[1])
        legend.append((reference[0], '<path class="rule" d="M0 5h14"/>'))
    frame = Frame(
        title, description, (0, len(names)), span(ys, True, 1.0), x_label, y_label, True, legend=legend, x_names=names
    )  # fmt: skip
    bar_width = 0.72 / len(groups)
    for j, group in enumerate(groups):
        for k in range(len(names)):
            x0, x1 = frame.px(k + 0.14 + j * bar_width), frame.px(k + 0.14 + (j + 1) * bar_width)
            frame.parts.append(_bar(frame, group, k, x0, x1))
    if reference:
        y = frame.py(reference[1])
        frame.parts.append(f'<path class="rule" d="M{n(frame.left)} {n(y)}H{n(frame.right)}"/>')
    return frame.svg()


def _bar(frame: Frame, group: Bars, k: int, x0: float, x1: float) -> str:
    """A bar and its error bar; without a value, an empty bar with its tooltip."""
    value, interval = group.rate(k), group.bins[k].clip_interval
    y = frame.py(value) if finite(value) else float(frame.bottom)
    whisker, said = "", _said(value, interval, percent)
    if finite(value):
        low, high, middle = frame.py(interval[0]), frame.py(interval[1]), (x0 + x1) / 2
        whisker = f"M{n(middle)} {n(low)}V{n(high)}M{n(middle - 3)} {n(low)}h6M{n(middle - 3)} {n(high)}h6"
    name, count = group.bins[k].label, group.bins[k].count
    return (
        f"<g><title>{escape(f'{group.label}, {name}: {said}, {count:,} answers')}</title>"
        f'<rect class="bar c{group.colour}" x="{n(x0 + 0.5)}" y="{n(y)}" width="{n(max(0.5, x1 - x0 - 1))}" '
        f'height="{n(frame.bottom - y)}"/><path class="whisker" d="{whisker}"/></g>'
    )
