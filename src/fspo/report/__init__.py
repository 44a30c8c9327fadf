"""What a run looked like: the page written after it, and the display while it goes."""

from fspo.report.display import Display
from fspo.report.load import Run, load
from fspo.report.page import write

__all__ = ["Display", "Run", "load", "write"]
