"""The results of a suite: what is measured of a finished run, and the file with one row per cell.

A row has accuracy, stability, and clipping at every length, over off-policy responses that have a gradient (see
`fspo.ratios`). Sums per length are stored instead of rows, so that runs can be pooled afterwards. The file is complete
after every write.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from fspo import runs
from fspo.comparisons.plan import Row
from fspo.files import replacing
from fspo.runs import rows as run_rows

SPANS = 40  # most points of a curve
SPIKE, BEFORE = 3.0, 20  # a gradient norm above 3 times the median of the 20 steps before it is a spike
CURVES = ("reward", "length", "clip_rate", "kl", "ess", "grad_norm", "norm_clipped", "entropy")

_FLOATS, _DOUBLES, _INTEGERS = pa.list_(pa.float32()), pa.list_(pa.float64()), pa.list_(pa.int32())
_GAIN = pa.struct([
    ("low", pa.float64()), ("high", pa.float64()), ("count", pa.int32()), ("start", pa.float64()),
    ("final", pa.float64()),
])  # fmt: skip

SCHEMA = pa.schema([
    *((name, pa.string()) for name in ("suite", "key", "phase", "task", "setting", "method")),
    ("trial", pa.int32()), ("seed", pa.int32()), ("warm_start", pa.int32()),
    ("schema", pa.int32()), *((name, pa.string()) for name in ("config", "objective", "advantage")),
    *((name, pa.string()) for name in ("status", "error", "version", "commit", "torch")),
    ("seconds", pa.float64()), ("cpu_seconds", pa.float64()),
    ("eval_steps", _INTEGERS), ("eval_accuracy", _DOUBLES), ("eval_worst", _DOUBLES),
    *((name, pa.float64()) for name in ("start", "final", "score", "peak", "auc", "worst")),
    ("collapsed", pa.bool_()), ("spikes", pa.int32()),
    ("length_first", pa.float64()), ("length_last", pa.float64()), ("skipped", pa.int32()),
    ("steps", _INTEGERS), *((name, _FLOATS) for name in CURVES),
    ("lengths", _INTEGERS), ("count", _INTEGERS), ("accepted", _DOUBLES),
    ("cosine_steps", _INTEGERS), *((name, _FLOATS) for name in ("cosine", "cosine_bound", "cosine_bound_full")),
    ("gains", pa.list_(_GAIN)), ("features", pa.string()), ("optimum", pa.string()),
])  # fmt: skip
"""The columns: those of `Cell.labels`, of the cell's run (`run_cell`), and those of `outcome`."""

NO_OUTCOME = {"suite", "key", "schema", "config", "objective", "seconds", "cpu_seconds", "version", "commit", "torch"}


# --- the file ---------------------------------------------------------------------------------------------------------


class Store:
    """The results file of a suite, and its rows in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[Row] = read(path) if path.is_file() else []
        self._table = _table(self.rows)

    def add(self, row: Row) -> None:
        """Append a row; it is on disk when this returns."""
        self._table = pa.concat_tables([self._table, _table([row])]).combine_chunks()
        self.rows.append(as_stored(row))
        self._write()

    def put_first(self, rows: Iterable[Row]) -> None:
        """Reorder the file: these rows in this order, then all others."""
        rows = list(rows)
        keys = {row["key"] for row in rows}
        self.rows = rows + [row for row in self.rows if row["key"] not in keys]
        self._table = _table(self.rows)
        self._write()

    def _write(self) -> None:
        with replacing(self.path, flush=True) as scratch:
            pq.write_table(self._table, scratch, compression="zstd")


def as_stored(row: Row) -> Row:
    """A row with the columns and the precision of the file."""
    stored: Row = _table([row]).to_pylist()[0]
    return stored


def _table(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def read(path: Path) -> list[Row]:
    """The rows of a results file or of the file in a folder."""
    if not path.exists():
        raise ValueError(f"there is no {path}: run this where the results are, or name their folder with --out")
    path = path / "results.parquet" if path.is_dir() else path
    try:
        rows: list[Row] = pq.read_table(path).select(SCHEMA.names).cast(SCHEMA).to_pylist()
    except (pa.ArrowException, KeyError, FileNotFoundError) as error:
        raise ValueError(f"{path} is not a results file of this version: {' '.join(str(error).split())}") from None
    return rows


def differences(old: Row, new: Row) -> list[str]:
    """The outcome columns that differ; one that is null in the old row was measured later, and is not compared."""
    names = sorted(name for name, value in old.items() if value is not None and name not in NO_OUTCOME)
    return [name for name in names if json.dumps(old[name]) != json.dumps(new[name])]  # as text NaN equals itself


# --- the measurements of a run ----------------------------------------------------------------------------------------


def outcome(folder: Path, *, failed: bool = False) -> Row:
    """The measured columns of a row of the results, from the folder of a run."""
    run = runs.load(folder)
    return {
        **_accuracy(run.evaluations, failed),
        **_health(run.metrics),
        **_curves(run.metrics),
        "gains": _gains(run.evaluations),
        "features": json.dumps(_features(run.evaluations)),
        **_sums(folder),
        "cosine_steps": [line.step for line in run.cosine],
        "cosine": [line.measured for line in run.cosine],
        "cosine_bound": [line.bound_tight for line in run.cosine],
        "cosine_bound_full": [line.bound for line in run.cosine],
    }


def _accuracy(evaluations: Sequence[runs.Evaluated], failed: bool) -> Row:
    evaluations = [e for e in evaluations if e.by_difficulty]  # none where no answer could be scored
    steps = [e.step for e in evaluations]
    accuracy = [e.accuracy for e in evaluations if e.accuracy is not None]
    worst = [min(b.accuracy for b in e.by_difficulty) for e in evaluations]
    top = int(np.argmax(accuracy))
    span = steps[-1] - steps[0]
    return {
        "eval_steps": steps,
        "eval_accuracy": accuracy,
        "eval_worst": worst,
        "start": accuracy[0],
        "final": accuracy[-1],
        "score": float(np.mean(accuracy[-2:])),
        "peak": accuracy[top],
        "auc": float(np.trapezoid(accuracy, steps)) / span if span else accuracy[0],
        "worst": worst[-1],
        "collapsed": failed or min(accuracy[top:]) < accuracy[top] / 2,
    }


def _gains(evaluations: Sequence[runs.Evaluated]) -> list[Row]:
    """Accuracy at the first and the last evaluation, by bin of difficulty; the prompts and so the bins are the same."""
    evaluations = [e for e in evaluations if e.by_difficulty]
    first, last = evaluations[0].by_difficulty, evaluations[-1].by_difficulty
    if [(b.low, b.high) for b in first] != [(b.low, b.high) for b in last]:
        return []  # some answers could not be scored
    return [
        {"low": a.low, "high": a.high, "count": a.count, "start": a.accuracy, "final": b.accuracy}
        for a, b in zip(first, last, strict=True)
    ]


def _features(evaluations: Sequence[runs.Evaluated]) -> Row:
    """The features of held-out answers over the steps."""
    names = sorted({name for e in evaluations for name in e.features})
    return {
        name: {
            "steps": [e.step for e in evaluations if name in e.features],
            "values": [e.features[name] for e in evaluations if name in e.features],
        }
        for name in names
    }


def _health(metrics: Sequence[runs.Metrics]) -> Row:
    norms = [m.grad_norm for m in metrics if m.grad_norm is not None]
    spikes = sum(norms[i] > SPIKE * float(np.median(norms[i - BEFORE : i])) for i in range(BEFORE, len(norms)))
    lengths = [m.length for m in metrics if m.length is not None]
    tenth = math.ceil(len(lengths) / 10)
    return {
        "spikes": spikes,
        "length_first": float(np.mean(lengths[:tenth])),
        "length_last": float(np.mean(lengths[-tenth:])),
        "skipped": metrics[-1].skipped,
    }


def _curves(metrics: Sequence[runs.Metrics]) -> Row:
    """Means over at most SPANS spans of steps, each at its middle step."""
    spans = [span for span in np.array_split(np.arange(len(metrics)), SPANS) if len(span)]
    result: Row = {"steps": [metrics[span[len(span) // 2]].step for span in spans]}
    for name in CURVES:
        values = [[v for i in span if (v := getattr(metrics[i], name, None)) is not None] for span in spans]
        result[name] = [float(np.mean(v)) if v else None for v in values]
    return result


def _sums(folder: Path) -> Row:
    """Sums over the responses of off-policy updates, by length."""
    table = (
        run_rows.read(folder, ("off_policy", "length", "advantage", "log_ratio", "accepted"))
        .filter(pl.col("off_policy") & pl.col("log_ratio").is_finite())
        .with_columns(has_gradient=run_rows.HAS_GRADIENT, accepted=pl.col("accepted").cast(pl.Float64).clip(0, 1))
        .group_by("length")
        .agg(count=pl.col("has_gradient").sum(), accepted=pl.col("accepted").filter("has_gradient").sum())
        .sort("length")
    )
    return {"lengths": table["length"].to_list()} | {name: table[name].to_list() for name in ("count", "accepted")}
