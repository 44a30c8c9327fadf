from fspo.report.load import Run, load
from fspo.report.page import write

__all__ = ["Run", "load", "write"]
