"""Charts as SVG text, drawn by hand: no library, no script, colours from the page's CSS variables.

Every chart has a title and a description for readers who do not see it, honest axes, and scales with its column.
A value that is None (or not finite) is a gap, never a zero.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from fspo.report.text import escape, percent, short

Numbers = Sequence[float | None]
Format = Callable[[float], str]

WIDTH, HEIGHT = 420, 264
LETTER = 6.3  # width of a character at the charts' font size, for room and against overlap
MOST_POINTS = 400


@dataclass(frozen=True)
class Series:
    """A line, with a band between `low` and `high` where they are given."""

    label: str
    x: Sequence[float]
    y: Numbers
    low: Numbers | None = None
    high: Numbers | None = None
    colour: int = 1
    dots: bool = False
    smooth: bool = False  # the values faint, their running mean strong
    dashed: bool = False
    whiskers: bool = False  # the interval as an error bar at each point in the place of a band


@dataclass(frozen=True)
class Bars:
    """One bar for each label of the chart, with error bars where there are intervals."""

    label: str
    values: Numbers
    intervals: Sequence[Sequence[float] | None] | None = None
    notes: Sequence[str] = ()
    colour: int = 1


@dataclass(frozen=True)
class Points:
    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 1


# --- numbers -------------------------------------------------------------------------------------------------------


def finite(value: float | None) -> bool:
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


def formatter(values: Sequence[float]) -> Format:
    """Labels of an axis: all with the same, sufficient number of decimals."""
    size = max((abs(v) for v in values), default=1.0)
    step = min((abs(b - a) for a, b in pairwise(values)), default=size) or 1.0
    if size and (size < 1e-3 or size >= 1e6):
        return lambda v: f"{v:.1e}".replace("e-0", "e-").replace("e+0", "e").replace("-", "−") if v else "0"
    decimals = next((d for d in range(7) if abs(round(step, d) - step) < 1e-6 * step), 6)
    return lambda v: f"{v:,.{decimals}f}".replace("-", "−")


def percent_formatter(values: Sequence[float]) -> Format:
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


def thin(series: Series, most: int = MOST_POINTS) -> tuple[Series, int]:
    """At most `most` points, each the mean of a span of steps, and the length of the span."""
    n = len(series.x)
    width = math.ceil(n / most)
    if width <= 1:
        return series, 1

    def means(values: Numbers | None) -> Numbers | None:
        return None if values is None else [mean(values[k : k + width]) for k in range(0, n, width)]

    x = [sum(part) / len(part) for part in (series.x[k : k + width] for k in range(0, n, width))]
    y = means(series.y)
    assert y is not None
    return replace(series, x=x, y=y, low=means(series.low), high=means(series.high)), width


def mean(values: Numbers) -> float | None:
    kept = [v for v in values if v is not None and math.isfinite(v)]
    return sum(kept) / len(kept) if kept else None


def running_mean(values: Numbers, width: int) -> Numbers:
    half = width // 2
    return [mean(values[max(0, k - half) : k + half + 1]) if finite(v) else None for k, v in enumerate(values)]


# --- the frame -----------------------------------------------------------------------------------------------------


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "chart"


def n(value: float) -> str:
    """A coordinate."""
    return f"{value:.1f}".removesuffix(".0")


@dataclass
class Frame:
    """Axes and their scales; charts append to `parts` in the coordinates that `px` and `py` give."""

    title: str
    description: str
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    x_label: str = ""
    y_label: str = ""
    percent: bool = False
    whole_x: bool = True
    legend: Sequence[tuple[str, str]] = ()  # label, SVG of a 14 x 10 key
    x_names: Sequence[str] | None = None  # names in the place of numbers: one band each
    y_names: Sequence[str] | None = None
    height: int = HEIGHT
    width: int = WIDTH
    parts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.legend_rows = self._legend()
        self.top = 12 + 18 * self.legend_rows + (20 if self.y_label else 0)
        self.bottom = self.height - (40 if self.x_label else 24)
        self.y_ticks = [] if self.y_names else ticks(*self.y_range, most=6)
        form = percent_formatter(self.y_ticks) if self.percent else formatter(self.y_ticks)
        self.y_texts = list(self.y_names) if self.y_names else [form(v) for v in self.y_ticks]
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
        self._keys: list[tuple[float, int, str, str]] = []
        x, row = 4.0, 0
        for label, key in self.legend:
            room = 26 + LETTER * len(label)
            if x > 4 and x + room > self.width:
                x, row = 4.0, row + 1
            self._keys.append((x, row, label, key))
            x += room + 6
        return row + 1 if self.legend else 0

    def svg(self) -> str:
        name = slug(self.title)
        out = [
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-labelledby="{name}-t {name}-d">',
            f'<title id="{name}-t">{escape(self.title)}</title><desc id="{name}-d">{escape(self.description)}</desc>',
        ]
        for x, row, label, key in self._keys:
            y = 4 + 18 * row
            out.append(f'<g transform="translate({n(x)} {y})">{key}</g>')
            out.append(f'<text x="{n(x + 19)}" y="{y + 9}">{escape(label)}</text>')
        if self.y_label:
            out.append(f'<text class="label" x="4" y="{self.top - 13}">{escape(self.y_label)}</text>')
        out += self._y_axis() + self._x_axis()
        clip = f"{name}-c"
        out.append(
            f'<clipPath id="{clip}"><rect x="{n(self.left - 4)}" y="{n(self.top - 4)}" '
            f'width="{n(self.right - self.left + 8)}" height="{n(self.bottom - self.top + 8)}"/></clipPath>'
        )
        out.append(f'<g clip-path="url(#{clip})">{"".join(self.parts)}</g></svg>')
        return "\n".join(out)

    def _y_axis(self) -> list[str]:
        out = []
        for k, text in enumerate(self.y_texts):
            if self.y_names:
                y = self.py(k + 0.5)
            else:
                y = self.py(self.y_ticks[k])
                line = f'x1="{n(self.left)}" x2="{n(self.right)}" y1="{n(y)}" y2="{n(y)}"'
                out.append(f'<line class="{"axis" if self.y_ticks[k] == 0 else "grid"}" {line}/>')
            out.append(f'<text x="{n(self.left - 6)}" y="{n(y + 4)}" text-anchor="end">{escape(text)}</text>')
        return out

    def _x_axis(self) -> list[str]:
        low, high = self.x_range
        if self.x_names is not None:
            places = [k + 0.5 for k in range(len(self.x_names))]
            texts = list(self.x_names)
        else:
            places = ticks(low, high, most=7, whole=self.whole_x)
            form = formatter(places)
            texts = [form(v) for v in places]
        # Every second, third ... name where all do not fit.
        widest = LETTER * max((len(t) for t in texts), default=1) + 8
        room = (self.right - self.left) / max(1, len(places) if self.x_names is not None else len(places) - 1)
        every = max(1, math.ceil(widest / room))
        out = [
            f'<line class="axis" x1="{n(self.left)}" x2="{n(self.right)}" y1="{n(self.bottom)}" y2="{n(self.bottom)}"/>'
        ]
        for place, text in list(zip(places, texts, strict=True))[::every]:
            x = self.px(place)
            half = LETTER * len(text) / 2
            x = min(x, self.width - half - 1)
            if self.x_names is None:
                tick = self.px(place)
                out.append(f'<path class="axis" d="M{n(tick)} {n(self.bottom)}v4"/>')
            out.append(f'<text x="{n(x)}" y="{n(self.bottom + 16)}" text-anchor="middle">{escape(text)}</text>')
        if self.x_label:
            middle = (self.left + self.right) / 2
            out.append(
                f'<text class="label" x="{n(middle)}" y="{self.height - 6}" text-anchor="middle">'
                f"{escape(self.x_label)}</text>"
            )
        return out


def line_key(colour: int, dashed: bool = False) -> str:
    return f'<path class="line c{colour}{" dashed" if dashed else ""}" d="M0 5h14"/>'


def box_key(colour: int) -> str:
    return f'<rect class="bar c{colour}" width="14" height="10" rx="2"/>'


def dot_key(colour: int) -> str:
    return f'<path class="dots big c{colour}" d="M7 5h0"/>'


# --- the charts ----------------------------------------------------------------------------------------------------


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
    legend: bool = True,
) -> str:
    """Lines over steps. The axis starts at zero unless `zero` is off; `top` is the largest possible value."""
    thinned = [thin(s) for s in series]
    spans = max(width for _, width in thinned)
    series = [s for s, _ in thinned]
    xs = [float(v) for s in series for v in s.x]
    ys = [float(v) for s in series for values in (s.y, s.low or [], s.high or []) for v in values if finite(v)]  # type: ignore[arg-type]
    first, last = (min(xs), max(xs)) if xs else (0.0, 1.0)
    frame = Frame(
        title,
        description + (f" Each point is the mean of {spans} steps." if spans > 1 else ""),
        (first, last) if last > first else (first - 1, last + 1),
        span(ys, zero, top),
        x_label + (f" (means of {spans})" if spans > 1 else ""),
        y_label,
        percent_axis,
        legend=[(s.label, line_key(s.colour, s.dashed)) for s in series] if legend and len(series) > 1 else (),
        height=height,
        width=width,
    )
    for s in series:
        frame.parts.append(_drawn(frame, s, percent if percent_axis else short))
    return frame.svg()


def _drawn(frame: Frame, s: Series, form: Callable[[float | None], str]) -> str:
    out = []
    px, py = frame.px, frame.py
    known = sum(finite(v) for v in s.y)
    if len(s.x) < 3:  # too few for a line or a band to be seen
        s = replace(s, dots=True, whiskers=True)
    if s.low is not None and s.high is not None:
        rows = list(zip(s.x, s.low, s.high, strict=True))
        if s.whiskers:
            for x, low, high in rows:
                if low is not None and high is not None and finite(low) and finite(high):
                    out.append(f'<path class="whisker" d="M{n(px(x))} {n(py(low))}V{n(py(high))}"/>')
        else:
            for run in _runs([(x, a, b) if a is not None and b is not None else None for x, a, b in rows]):
                upper = " ".join(f"{n(px(x))} {n(py(b))}" for x, _, b in run)
                lower = " ".join(f"{n(px(x))} {n(py(a))}" for x, a, _ in reversed(run))
                out.append(f'<path class="band c{s.colour}" d="M{upper} {lower}Z"/>')
    smooth = s.smooth and known >= 20
    out.append(_path(frame, s.x, s.y, f"line c{s.colour}{' faint' if smooth else ''}{' dashed' if s.dashed else ''}"))
    if smooth:
        width = 2 * max(1, known // 30) + 1
        out.append(_path(frame, s.x, running_mean(s.y, width), f"line strong c{s.colour}"))
    if s.dots:
        lows, highs = s.low or [None] * len(s.x), s.high or [None] * len(s.x)
        for x, y, low, high in zip(s.x, s.y, lows, highs, strict=True):
            if y is not None and math.isfinite(y):
                extent = f" ({form(low)} to {form(high)})" if low is not None and high is not None else ""
                out.append(
                    f'<circle class="dot c{s.colour}" cx="{n(px(x))}" cy="{n(py(y))}" r="3">'
                    f"<title>{escape(f'{s.label}, step {x:g}: {form(y)}{extent}')}</title></circle>"
                )
    return "".join(out)


def _runs(rows: Sequence[tuple[float, ...] | None]) -> list[list[tuple[float, ...]]]:
    """Stretches without a gap."""
    runs: list[list[tuple[float, ...]]] = [[]]
    for row in rows:
        if row is None:
            runs.append([])
        else:
            runs[-1].append(row)
    return [run for run in runs if run]


def _path(frame: Frame, x: Sequence[float], y: Numbers, kind: str) -> str:
    runs = _runs([(a, b) if b is not None and math.isfinite(b) else None for a, b in zip(x, y, strict=True)])
    # A stretch of one point is drawn as a dot: a line of no length with round ends.
    d = "".join(
        "M" + " ".join(f"{n(frame.px(a))} {n(frame.py(b))}" for a, b in run) + ("h0" if len(run) == 1 else "")
        for run in runs
    )
    return f'<path class="{kind}" d="{d}"/>' if d else ""


def bars(
    title: str,
    description: str,
    names: Sequence[str],
    groups: Sequence[Bars],
    x_label: str,
    y_label: str,
    *,
    top: float | None = 1.0,
    reference: tuple[str, float] | None = None,
) -> str:
    """Bars from zero with error bars; `reference` is a dashed line across all of them."""
    ys = [float(v) for g in groups for v in g.values if finite(v)]  # type: ignore[arg-type]
    ys += [float(v) for g in groups for i in g.intervals or () if i is not None for v in i if finite(v)]
    legend = [(g.label, box_key(g.colour)) for g in groups] if len(groups) > 1 or reference else []
    if reference:
        ys.append(reference[1])
        legend.append((reference[0], '<path class="rule" d="M0 5h14"/>'))
    frame = Frame(
        title, description, (0, len(names)), span(ys, True, top), x_label, y_label, True, legend=legend, x_names=names
    )  # fmt: skip
    room = 0.72 / len(groups)
    for j, group in enumerate(groups):
        intervals = group.intervals or [None] * len(group.values)
        for k, (value, interval) in enumerate(zip(group.values, intervals, strict=True)):
            if value is None or not math.isfinite(value):
                continue
            x0, x1 = frame.px(k + 0.14 + j * room), frame.px(k + 0.14 + (j + 1) * room)
            y = frame.py(value)
            extent = f" ({percent(interval[0])} to {percent(interval[1])})" if interval else ""
            note = f", {group.notes[k]}" if group.notes else ""
            text = escape(f"{group.label}, {names[k]}: {percent(value)}{extent}{note}")
            out = (
                f'<rect class="bar c{group.colour}" x="{n(x0 + 0.5)}" y="{n(y)}" width="{n(x1 - x0 - 1)}" '
                f'height="{n(frame.bottom - y)}"/>'
            )
            if interval:
                low, high, middle = frame.py(interval[0]), frame.py(interval[1]), (x0 + x1) / 2
                out += (
                    f'<path class="whisker" d="M{n(middle)} {n(low)}V{n(high)}M{n(middle - 3)} {n(low)}h6'
                    f'M{n(middle - 3)} {n(high)}h6"/>'
                )
            frame.parts.append(f"<g><title>{text}</title>{out}</g>")
    if reference:
        y = frame.py(reference[1])
        frame.parts.append(f'<path class="rule" d="M{n(frame.left)} {n(y)}H{n(frame.right)}"/>')
    return frame.svg()


@dataclass(frozen=True)
class Cell:
    column: int
    row: int
    value: float
    note: str


def heat(
    title: str,
    description: str,
    spans: Sequence[tuple[float, float]],
    names: Sequence[str],
    cells: Sequence[Cell],
    y_label: str,
    value_label: str,
) -> str:
    """A cell for each span of steps and each row, shaded from nothing (0) to full (the largest value)."""
    most = max((c.value for c in cells), default=0.0)
    most = span([most], True, 1.0)[1] if most > 0 else 0.01
    shades = 5
    first, last = spans[0][0] - 0.5, spans[-1][1] + 0.5
    frame = Frame(
        title,
        description,
        (first, last),
        (0, len(names)),
        "step",
        y_label,
        y_names=names,
        legend=[(value_label, '<rect class="cell" width="14" height="10" fill-opacity="0.6"/>')],
    )
    # The scale of shades, at the right of the label.
    x = WIDTH - 12 - 24 * shades - LETTER * len(percent(most, 0 if most >= 0.05 else 1)) - 6
    digits = 0 if most >= 0.05 else 1
    scale = [f'<text x="{n(x - 5)}" y="13" text-anchor="end">0</text>']
    scale += [
        f'<rect class="cell" x="{n(x + 24 * k)}" y="3" width="24" height="12" '
        f'fill-opacity="{_shade((k + 0.5) / shades)}"/>'
        for k in range(shades)
    ]
    scale.append(f'<text x="{n(x + 24 * shades + 5)}" y="13">{percent(most, digits)}</text>')
    for c in cells:
        low, high = spans[c.column]
        x0, x1 = frame.px(max(first, low - 0.5)), frame.px(high + 0.5)
        y0, y1 = frame.py(c.row + 1), frame.py(c.row)
        frame.parts.append(
            f'<rect class="cell" x="{n(x0)}" y="{n(y0 + 0.5)}" width="{n(x1 - x0 + 0.15)}" height="{n(y1 - y0 - 1)}" '
            f'fill-opacity="{_shade(c.value / most)}"><title>{escape(c.note)}</title></rect>'
        )
    svg = frame.svg()
    return svg.replace("</desc>", "</desc>" + "".join(scale), 1)


def _shade(share: float) -> str:
    return f"{0.06 + 0.94 * max(0.0, min(1.0, share)):.2f}"


def scatter(
    title: str,
    description: str,
    groups: Sequence[Points],
    curves: Sequence[Series],
    x_label: str,
    y_label: str,
) -> str:
    """Points, with curves (a band, a drift) over them."""
    xs = [v for g in groups for v in g.x]
    ys = [v for g in groups for v in g.y] + [float(v) for c in curves for v in c.y if finite(v)]  # type: ignore[arg-type]
    low, high = span(xs, True, whole=True)
    frame = Frame(
        title,
        description,
        (low, high),
        span(ys, True),
        x_label,
        y_label,
        legend=[(g.label, dot_key(g.colour)) for g in groups]
        + [(c.label, line_key(c.colour, c.dashed)) for c in curves if c.label],
    )
    for g in groups:
        d = "".join(f"M{n(frame.px(x))} {n(frame.py(y))}h0" for x, y in zip(g.x, g.y, strict=True))
        if d:
            frame.parts.append(f'<path class="dots c{g.colour}" d="{d}"/>')
    for c in curves:
        frame.parts.append(_path(frame, c.x, c.y, f"line strong c{c.colour}{' dashed' if c.dashed else ''}"))
    return frame.svg()


def histogram(
    title: str,
    description: str,
    edges: Sequence[float],
    counts: Sequence[float],
    curve: Series | None,
    marks: Sequence[tuple[str, float]],
    x_label: str,
    y_label: str,
) -> str:
    """Counts between edges, a curve over them, and vertical marks."""
    ys = [*counts, *(float(v) for v in (curve.y if curve else ()) if finite(v))]  # type: ignore[arg-type]
    legend = [("answers", box_key(1))]
    if curve:
        legend.append((curve.label, line_key(curve.colour)))
    legend += [(label, '<path class="rule" d="M7 0v10"/>') for label in dict.fromkeys(label for label, _ in marks)]
    frame = Frame(
        title, description, (edges[0], edges[-1]), span(ys, True), x_label, y_label, whole_x=False, legend=legend
    )  # fmt: skip
    for a, b, count in zip(edges, edges[1:], counts, strict=False):
        x0, x1, y = frame.px(a), frame.px(b), frame.py(count)
        frame.parts.append(
            f'<rect class="bar c1" x="{n(x0)}" y="{n(y)}" width="{n(max(0.3, x1 - x0 - 0.6))}" '
            f'height="{n(frame.bottom - y)}"><title>{escape(f"{short(a)} to {short(b)}: {count:g}")}</title></rect>'
        )
    if curve:
        frame.parts.append(_path(frame, curve.x, curve.y, f"line strong c{curve.colour}"))
    for _, at in marks:
        if edges[0] <= at <= edges[-1]:
            frame.parts.append(f'<path class="rule" d="M{n(frame.px(at))} {n(frame.top)}V{n(frame.bottom)}"/>')
    return frame.svg()
