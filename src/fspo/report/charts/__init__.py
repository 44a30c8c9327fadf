"""Charts as SVG text, drawn by hand: no library, no script needed, colours from the page's CSS variables.

Every chart has a title and a description for readers who do not see it, honest axes, and scales with its column.
A value that is None (or not finite) is a gap, never a zero.
"""

from fspo.report.charts.axes import finite, formatter, mean, span, ticks
from fspo.report.charts.bars import Bars, bars, histogram
from fspo.report.charts.dots import Dot, dots
from fspo.report.charts.heat import Cell, heat
from fspo.report.charts.lines import MOST_POINTS, Series, line, thin
from fspo.report.charts.scatter import Points, scatter

__all__ = [
    "MOST_POINTS",
    "Bars",
    "Cell",
    "Dot",
    "Points",
    "Series",
    "bars",
    "dots",
    "finite",
    "formatter",
    "heat",
    "histogram",
    "line",
    "mean",
    "scatter",
    "span",
    "thin",
    "ticks",
]
