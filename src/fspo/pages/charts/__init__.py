"""Charts as SVG, drawn without a library and readable without a script, in colours from the page's CSS variables.

Every chart has a title and a description for screen readers, and axes that start at 0 or state where they start.
A value that is None (or not finite) is a gap, never a zero.
"""

from fspo.pages.charts.axes import finite, formatter, mean, span, ticks
from fspo.pages.charts.bars import Bars, bars, histogram
from fspo.pages.charts.dots import Dot, dots
from fspo.pages.charts.heat import HeatCell, heat
from fspo.pages.charts.lines import MOST_POINTS, Series, line, thin
from fspo.pages.charts.scatter import Points, scatter

__all__ = [
    "MOST_POINTS",
    "Bars",
    "Dot",
    "HeatCell",
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
