"""Lines over the steps, with intervals and running means."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from fspo.pages.charts.axes import Numbers, finite, mean, running_mean, span
from fspo.pages.charts.frame import HEIGHT, WIDTH, Frame, line_key, n, path, stretches
from fspo.text import escape, percent, short

MOST_POINTS = 400


@dataclass(frozen=True)
class Series:
    """A line, with a band between `low` and `high` where they are given. Without a label it is not in the legend."""

    label: str
    x: Sequence[float]
    y: Numbers
    low: Numbers | None = None
    high: Numbers | None = None
    colour: int = 1
    dots: bool = False
    smooth: bool = False  # the values as a faint line, their running mean as a strong one
    dashed: bool = False  # with hollow dots
    dotted: bool = False  # with `dashed`, dots between the dashes
    whiskers: bool = False  # the interval as an error bar at each point instead of a band


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
    whole_x: bool = True,
    log_x: bool = False,
    x_names: Sequence[str] | None = None,
) -> Markup:
    """Lines over steps. The axis starts at zero unless `zero` is off; `top` is the largest possible value.

    With `x_names`, x = k is the place of the k-th name.
    """
    if log_x:
        series = [replace(s, x=[math.log10(v) for v in s.x]) for s in series]
    if x_names is not None:
        series = [replace(s, x=[v + 0.5 for v in s.x]) for s in series]
    thinned = [thin(s) for s in series]
    spans = max(width for _, width in thinned)
    series = [s for s, _ in thinned]
    xs = [float(v) for s in series for v in s.x]
    ys = [float(v) for s in series for values in (s.y, s.low or [], s.high or []) for v in values if finite(v)]  # type: ignore[arg-type]
    first, last = (min(xs), max(xs)) if xs else (0.0, 1.0)
    if any(s.dots for s in series):  # room, so that no dot lies on the axis
        first, last = first - 0.02 * (last - first), last + 0.02 * (last - first)
    frame = Frame(
        title,
        description + (f" Each point is the mean of {spans} steps." if spans > 1 else ""),
        (0, len(x_names)) if x_names is not None else (first, last) if last > first else (first - 1, last + 1),
        span(ys, zero, top),
        x_label + (f" (means of {spans})" if spans > 1 else ""),
        y_label,
        percent_axis,
        whole_x=whole_x,
        log_x=log_x,
        x_names=x_names,
        legend=[(s.label, line_key(s.colour, s.dashed)) for s in series if s.label and legend and len(series) > 1],
        height=height,
        width=width,
    )
    for s in series:
        frame.parts.append(_drawn(frame, s, x_label, percent if percent_axis else short))
    return frame.svg()


def _drawn(frame: Frame, s: Series, x_label: str, form: Callable[[float | None], str]) -> str:
    out = []
    px, py = frame.px, frame.py
    known = sum(finite(v) for v in s.y)
    if len(s.x) < 3:  # a line or a band of so few points would not be visible
        s = replace(s, dots=True, whiskers=True)
    if s.low is not None and s.high is not None:
        rows = list(zip(s.x, s.low, s.high, strict=True))
        if s.whiskers:
            for x, low, high in rows:
                if low is not None and high is not None and finite(low) and finite(high):
                    out.append(f'<path class="whisker own c{s.colour}" d="M{n(px(x))} {n(py(low))}V{n(py(high))}"/>')
        else:
            for run in stretches([(x, a, b) if a is not None and b is not None else None for x, a, b in rows]):
                upper = " ".join(f"{n(px(x))} {n(py(b))}" for x, _, b in run)
                lower = " ".join(f"{n(px(x))} {n(py(a))}" for x, a, _ in reversed(run))
                out.append(f'<path class="band c{s.colour}" d="M{upper} {lower}Z"/>')
    smooth = s.smooth and known >= 20
    dashed = " dashed" * s.dashed + " dotted" * s.dotted
    out.append(
        path(frame, s.x, s.y, f"line c{s.colour}{' faint' if smooth else ''}{dashed}", "" if frame.x_names else s.label)
    )
    if smooth:
        width = 2 * max(1, known // 30) + 1
        out.append(path(frame, s.x, running_mean(s.y, width), f"line strong c{s.colour}{dashed}"))
    if s.dots:
        lows, highs = s.low or [None] * len(s.x), s.high or [None] * len(s.x)
        for x, y, low, high in zip(s.x, s.y, lows, highs, strict=True):
            if y is not None and math.isfinite(y):
                place = frame.x_names[int(x)] if frame.x_names else f"{10**x if frame.log_x else x:g}"
                extent = f" ({form(low)} to {form(high)})" if low is not None and high is not None else ""
                out.append(
                    f'<circle class="dot{" hollow" * s.dashed} c{s.colour}" cx="{n(px(x))}" cy="{n(py(y))}" r="3">'
                    f"<title>{escape(f'{s.label}, {x_label} {place}: {form(y)}{extent}')}</title></circle>"
                )
    return "".join(out)
