"""The run folder: its schema, the writer that every engine writes through, and the reader that every page reads."""

from fspo.runs.folder import RunWarning, claimed, is_run, locked, run_folder
from fspo.runs.observer import NullObserver, Observer
from fspo.runs.reader import Run, last_state, load, load_all, read_lines, refuse_script, require_engine
from fspo.runs.schema import (
    FORMAT,
    ClipBin,
    Cosine,
    Evaluated,
    Facts,
    GradientShare,
    Metrics,
    Rate,
    RateBin,
    Sample,
    Timing,
    UpdateState,
    unscored_warnings,
)
from fspo.runs.writer import RunWriter

__all__ = [
    "FORMAT", "ClipBin", "Cosine", "Evaluated", "Facts", "GradientShare", "Metrics", "NullObserver", "Observer", "Rate",
    "RateBin", "Run", "RunWarning", "RunWriter", "Sample", "Timing", "UpdateState", "claimed", "is_run", "last_state",
    "load", "load_all", "locked", "read_lines", "refuse_script", "require_engine", "run_folder", "unscored_warnings",
]  # fmt: skip
