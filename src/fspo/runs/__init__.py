"""The run folder: its schema, the writer that every engine writes through, and the reader that every page reads."""

from fspo.runs.folder import Run, RunWarning, RunWriter, claimed, load, load_all, locked, read_lines
from fspo.runs.observer import Observer
from fspo.runs.schema import ClipBin, Cosine, Evaluated, Metrics, Rate, RateBin, Sample, Timing, unscored_warnings

__all__ = [
    "ClipBin", "Cosine", "Evaluated", "Metrics", "Observer", "Rate", "RateBin", "Run", "RunWarning", "RunWriter",
    "Sample", "Timing", "claimed", "load", "load_all", "locked", "read_lines", "unscored_warnings",
]  # fmt: skip
