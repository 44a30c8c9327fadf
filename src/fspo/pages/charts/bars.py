"""Bars with error bars, and histograms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fspo.pages.charts.axes import Numbers, finite, span
from fspo.pages.charts.frame import Frame, box_key, line_key, n, path
from fspo.pages.charts.lines import Series
from fspo.text import escape, percent, short


@dataclass(frozen=True)
class Bars:
    """One bar for each label of the chart, with error bars where there are intervals."""

    label: str
    values: Numbers
    intervals: Sequence[Sequence[float] | None] | None = None
    notes: Sequence[str] = ()
    colour: int = 1


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
    reach: float | None = None,
) -> Markup:
    """Bars from zero with error bars; `reference` is a dashed line across all bars, and the axis includes `reach`."""
    ys = [float(v) for g in groups for v in g.values if finite(v)]  # type: ignore[arg-type]
    ys += [float(v) for g in groups for i in g.intervals or () if i is not None for v in i if finite(v)]
    legend = [(g.label, box_key(g.colour)) for g in groups] if len(groups) > 1 or reference else []
    if reach is not None:
        ys.append(reach)
    if reference:
        ys.append(reference[1])
        legend.append((reference[0], '<path class="rule" d="M0 5h14"/>'))
    frame = Frame(
        title, description, (0, len(names)), span(ys, True, top), x_label, y_label, True, legend=legend, x_names=names
    )  # fmt: skip
    room = 0.72 / len(groups)
    for j, group in enumerate(groups):
        for k in range(len(names)):
            x0, x1 = frame.px(k + 0.14 + j * room), frame.px(k + 0.14 + (j + 1) * room)
            frame.parts.append(_bar(frame, group, k, names[k], x0, x1))
    if reference:
        y = frame.py(reference[1])
        frame.parts.append(f'<path class="rule" d="M{n(frame.left)} {n(y)}H{n(frame.right)}"/>')
    return frame.svg()


def _bar(frame: Frame, group: Bars, k: int, name: str, x0: float, x1: float) -> str:
    """A bar and its error bar; one without a value keeps its place, because the slider may give it one."""
    value = group.values[k]
    interval = group.intervals[k] if group.intervals else None
    y: float = frame.bottom
    whisker, said = "", "no value"
    if value is not None and math.isfinite(value):
        y, said = frame.py(value), percent(value)
        if interval:
            low, high, middle = frame.py(interval[0]), frame.py(interval[1]), (x0 + x1) / 2
            whisker = f"M{n(middle)} {n(low)}V{n(high)}M{n(middle - 3)} {n(low)}h6M{n(middle - 3)} {n(high)}h6"
            said += f" ({percent(interval[0])} to {percent(interval[1])})"
    note = f", {group.notes[k]}" if group.notes else ""
    return (
        f"<g><title>{escape(f'{group.label}, {name}: {said}{note}')}</title>"
        f'<rect class="bar c{group.colour}" x="{n(x0 + 0.5)}" y="{n(y)}" width="{n(max(0.5, x1 - x0 - 1))}" '
        f'height="{n(frame.bottom - y)}"/><path class="whisker" d="{whisker}"/></g>'
    )


def histogram(
    title: str,
    description: str,
    edges: Sequence[float],
    counts: Sequence[float],
    curve: Series | None,
    marks: Sequence[tuple[str, float]],
    x_label: str,
    y_label: str,
) -> Markup:
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
        frame.parts.append(path(frame, curve.x, curve.y, f"line strong c{curve.colour}"))
    for _, at in marks:
        if edges[0] <= at <= edges[-1]:
            frame.parts.append(f'<path class="rule" d="M{n(frame.px(at))} {n(frame.top)}V{n(frame.bottom)}"/>')
    return frame.svg()
