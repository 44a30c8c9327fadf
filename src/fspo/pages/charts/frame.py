"""The frame of a chart: axes, grid, legend, and a title and a description for screen readers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from fspo.pages.charts.axes import Numbers, formatter, log_ticks, percent_formatter, ticks
from fspo.text import escape, slug

WIDTH, HEIGHT = 420, 264
LETTER = 6.3  # width of a character at the charts' font size, to leave room for texts


def n(value: float) -> str:
    """A coordinate."""
    return f"{value:.1f}".removesuffix(".0")


@dataclass
class Frame:
    """Axes and their scales. Charts add to `parts`, in the coordinates that `px` and `py` give."""

    title: str
    description: str
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    x_label: str = ""
    y_label: str = ""
    percent: bool = False  # whether the numbers of y or, where y has names, of x are shares
    whole_x: bool = True
    log_x: bool = False  # x is the log10 of what the ticks show
    legend: Sequence[tuple[str, str]] = ()  # label, SVG of a 14 x 10 key
    x_names: Sequence[str] | None = None  # names instead of numbers: one band each
    y_names: Sequence[str] | None = None
    height: int = HEIGHT
    width: int = WIDTH
    parts: list[str] = field(default_factory=list)  # inside the axes; what lies outside is cut off
    margin: list[str] = field(default_factory=list)  # anywhere

    def __post_init__(self) -> None:
        self.legend_rows = self._legend()
        self.top = 12 + 18 * self.legend_rows + (20 if self.y_label else 0)
        self.bottom = self.height - (40 if self.x_label else 24)
        self.y_ticks = [] if self.y_names else ticks(*self.y_range, most=6)
        form = percent_formatter(self.y_ticks) if self.percent else formatter(self.y_ticks)
        self.y_texts = list(self.y_names) if self.y_names else [form(v) for v in self.y_ticks]
        self.left = 12 + LETTER * max((len(t) for t in self.y_texts), default=1)
        self.right = self.width - (22 if self.percent and self.y_names else 12)  # room for the last percentage

    def px(self, x: float) -> float:
        low, high = self.x_range
        return self.left + (x - low) / (high - low) * (self.right - self.left)

    def py(self, y: float) -> float:
        low, high = self.y_range
        return self.bottom - (y - low) / (high - low) * (self.bottom - self.top)

    def geometry(self) -> str:
        """The corners of the plot in the drawing and in the data, for the script."""
        corners = (self.left, self.right, self.top, self.bottom, *self.x_range, *self.y_range)
        return " ".join(f"{v:.6g}" for v in corners)

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

    def svg(self) -> Markup:
        """The chart. Every text in it has been escaped, which makes this the one place that declares it markup."""
        name = slug(self.title)
        out = [
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-labelledby="{name}-t {name}-d" '
            f'data-frame="{self.geometry()}" data-x="{"log10 of " * self.log_x}{escape(self.x_label)}">',
            f'<title id="{name}-t">{escape(self.title)}</title><desc id="{name}-d">{escape(self.description)}</desc>',
            *self.margin,
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
        return Markup("\n".join(out))

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
        elif self.log_x:
            places = log_ticks(low, high)
            texts = [f"{10**v:.6g}" for v in places]
        else:
            places = ticks(low, high, most=7, whole=self.whole_x)
            form = percent_formatter(places) if self.percent and self.y_names else formatter(places)
            texts = [form(v) for v in places]
        # Every second or third name and so on, where not all of them fit.
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
    runs = stretches([(a, b) if b is not None and math.isfinite(b) else None for a, b in zip(x, y, strict=True)])
    name = f' data-label="{escape(label)}"' if label else ""
    # A stretch of one point is drawn as a dot: a line of no length with round ends.
    d = "".join(
        "M" + " ".join(f"{n(frame.px(a))} {n(frame.py(b))}" for a, b in run) + ("h0" if len(run) == 1 else "")
        for run in runs
    )
    return f'<path class="{kind}"{name} d="{d}"/>' if d else ""
