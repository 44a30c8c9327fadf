"""The run folder: its schema, the writer that every engine writes through, and the reader that every page reads."""

from fspo.runs.folder import (
    Run,
    RunWarning,
    RunWriter,
    claimed,
    is_run,
    last_state,
    load,
    load_all,
    locked,
    read_lines,
    require_engine,
    run_folder,
)
from fspo.runs.observer import Observer
from fspo.runs.schema import (
    FORMAT,
    ClipBin,
    Cosine,
    Evaluated,
    Facts,
    Metrics,
    Rate,
    RateBin,
    Sample,
    Timing,
    UpdateState,
    unscored_warnings,
)

__all__ = [
    "FORMAT", "ClipBin", "Cosine", "Evaluated", "Facts", "Metrics", "Observer", "Rate", "RateBin",
    "Run", "RunWarning", "RunWriter", "Sample", "Timing", "UpdateState", "claimed", "is_run", "last_state",
    "load", "load_all", "locked", "read_lines", "require_engine", "run_folder", "unscored_warnings",
]  # fmt: skip
