"""The results of a suite: one Parquet file with one row per finished cell, complete after every write."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fspo.comparisons.outcome import CURVES
from fspo.comparisons.plan import Row
from fspo.files import replacing

__all__ = ["SCHEMA", "Store", "read"]

_TEXT = ("suite", "key", "phase", "task", "setting", "method")
_FINAL = ("start", "final", "score", "peak", "auc", "worst")
_FLOATS, _DOUBLES, _INTEGERS = pa.list_(pa.float32()), pa.list_(pa.float64()), pa.list_(pa.int32())
_STAGE = pa.struct([
    ("update", pa.int32()), ("staleness", pa.int32()), ("mu", pa.float64()), ("sigma", pa.float64()),
    ("count", pa.int32()), ("c_low", pa.float64()), ("c_high", pa.float64()),
])  # fmt: skip

_GAIN = pa.struct([
    ("low", pa.float64()), ("high", pa.float64()), ("count", pa.int32()), ("start", pa.float64()),
    ("final", pa.float64()),
])  # fmt: skip
_SHARE = pa.struct([
    ("step", pa.int32()), ("low", pa.float64()), ("high", pa.float64()), ("true", pa.float64()),
    ("clipped", pa.float64()),
])  # fmt: skip
# Columns that older files lack; they are null there.
_LATER = {
    "warm_start": pa.int32(), "norm_clipped": _FLOATS, "gains": pa.list_(_GAIN), "features": pa.string(),
    "optimum": pa.string(), "gradient": pa.list_(_SHARE),
}  # fmt: skip

SCHEMA = pa.schema([
    *((name, pa.string()) for name in _TEXT), ("trial", pa.int32()), ("x", pa.float64()),
    ("objective", pa.string()), ("advantage", pa.string()), ("seed", pa.int32()), ("config", pa.string()),
    *((name, pa.string()) for name in ("status", "error", "version", "commit", "torch")),
    ("seconds", pa.float64()), ("cpu_seconds", pa.float64()),
    ("eval_steps", _INTEGERS), ("eval_accuracy", _DOUBLES), ("eval_worst", _DOUBLES),
    *((name, pa.float64()) for name in _FINAL), ("collapsed", pa.bool_()), ("spikes", pa.int32()),
    ("length_first", pa.float64()), ("length_last", pa.float64()), ("skipped", pa.int32()),
    ("steps", _INTEGERS), *((name, _FLOATS) for name in CURVES if name not in _LATER),
    ("lengths", _INTEGERS), ("count", _INTEGERS), ("accepted", _DOUBLES),
    ("all_count", _INTEGERS), ("total", _DOUBLES), ("square", _DOUBLES), ("stages", pa.list_(_STAGE)),
    *((name, _FLOATS) for name in ("h_steps", "h", "h_low", "h_high")),
    ("cosine_steps", _INTEGERS), *((name, _FLOATS) for name in ("cosine", "cosine_bound", "cosine_bound_full")),
    ("attributes", pa.string()), *_LATER.items(),
])  # fmt: skip
"""The columns: those of `Cell.labels`, of the cell's run (`run_cell`), and those of `outcome`."""


class Store:
    """The results file of a suite, and its rows in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._table = _read(path) if path.is_file() else SCHEMA.empty_table()
        self.rows: list[Row] = self._table.to_pylist()

    def add(self, row: Row) -> None:
        """Append a row; it is on disk when this returns."""
        one = pa.Table.from_pylist([row], schema=SCHEMA)
        self._table = pa.concat_tables([self._table, one]).combine_chunks()
        self.rows += one.to_pylist()
        self._write()

    def put_first(self, rows: Iterable[Row]) -> None:
        """Reorder the file: these rows in this order, then all others."""
        rows = list(rows)
        keys = {row["key"] for row in rows}
        self.rows = rows + [row for row in self.rows if row["key"] not in keys]
        self._table = pa.Table.from_pylist(self.rows, schema=SCHEMA)
        self._write()

    def _write(self) -> None:
        with replacing(self.path, flush=True) as scratch:
            pq.write_table(self._table, scratch, compression="zstd")


def read(path: Path) -> list[Row]:
    """The rows of a results file."""
    rows: list[Row] = _read(path).to_pylist()
    return rows


def _read(path: Path) -> pa.Table:
    try:
        table = pq.read_table(path)
        for name, kind in _LATER.items():
            if name not in table.column_names:
                table = table.append_column(name, pa.nulls(len(table), kind))
        return table.select(SCHEMA.names).cast(SCHEMA)
    except (pa.ArrowException, KeyError) as error:
        raise ValueError(f"{path} is not a results file of this version: {' '.join(str(error).split())}") from None
