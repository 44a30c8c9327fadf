"""Dots with error bars, one row per name: for more names than a legend can hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fspo.pages.charts.axes import finite, span
from fspo.pages.charts.frame import Frame, n
from fspo.text import escape, percent, visible

ROW = 22  # height of a row
LONGEST = 34  # characters of a name beside its row; the tooltip has the whole name


@dataclass(frozen=True)
class Dot:
    """A share between 0 and 1 with its interval; a value of None leaves its row empty."""

    label: str
    value: float | None
    interval: tuple[float, float] | None = None
    colour: int = 1
    hollow: bool = False


def dots(
    title: str,
    description: str,
    rows: Sequence[Dot],
    x_label: str,
    *,
    reference: tuple[str, float] | None = None,
    width: int,
) -> Markup:
    """One dot and whisker per row, from the top; `reference` is a dashed line through all rows.

    A reader compares positions, not lengths, so the axis need not start at 0; where it does not, its label says so.
    """
    xs = [float(v) for row in rows for v in (row.value, *(row.interval or ())) if finite(v)]
    if reference:
        xs.append(reference[1])
    room = 0.03 * (max(xs) - min(xs)) or 0.05 if xs else 0.0
    low, high = span([v for x in xs for v in (max(0.0, x - room), min(1.0, x + room))], False, 1.0)
    extent = f"axis from {percent(low)} to {percent(high)}"
    legend = [(reference[0], '<path class="rule" d="M7 0v10"/>')] if reference else []
    frame = Frame(
        title, f"{description} {extent.capitalize()}.", (low, high), (len(rows), 0),
        x_label + f" ({extent})" * (low > 0), percent=True, whole_x=False, legend=legend,
        y_names=[_short(row.label) for row in rows], height=52 + 18 * len(legend) + ROW * len(rows), width=width,
    )  # fmt: skip
    if reference:
        frame.parts.append(f'<path class="rule" d="M{n(frame.px(reference[1]))} {n(frame.top)}V{n(frame.bottom)}"/>')
    frame.parts += [_row(frame, row, frame.py(k + 0.5)) for k, row in enumerate(rows)]
    return frame.svg()


def _row(frame: Frame, row: Dot, y: float) -> str:
    guide = f'<line class="grid" x1="{n(frame.left)}" x2="{n(frame.right)}" y1="{n(y)}" y2="{n(y)}"/>'
    if row.value is None or not finite(row.value):
        return f'{guide}<text class="label" x="{n(frame.left + 6)}" y="{n(y + 4)}">no value</text>'
    whisker, said = "", percent(row.value)
    if row.interval and all(map(finite, row.interval)):
        low, high = (frame.px(v) for v in row.interval)
        ends = "".join(f"M{n(x)} {n(y - 3)}v6" for x in (low, high))
        whisker = f'<path class="whisker own c{row.colour}" d="M{n(low)} {n(y)}H{n(high)}{ends}"/>'
        said += f" ({percent(row.interval[0])} to {percent(row.interval[1])})"
    kind = "dot hollow" if row.hollow else "dot"
    return (
        f"{guide}<g><title>{escape(f'{row.label}: {said}')}</title>{whisker}"
        f'<circle class="{kind} c{row.colour}" cx="{n(frame.px(row.value))}" cy="{n(y)}" r="3.2"/></g>'
    )


def _short(name: str) -> str:
    shown = visible(name)
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"
