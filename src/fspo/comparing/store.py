"""The results of a suite: one Parquet file, a row a finished cell, whole at any time."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fspo.comparing.outcome import CURVES

Row = dict[str, Any]
_TEXT = ("suite", "key", "phase", "task", "setting", "method")
_FINAL = ("start", "final", "score", "peak", "auc", "worst")
_SHORT, _LONG = pa.list_(pa.float32()), pa.list_(pa.float64())
_WHOLE = pa.list_(pa.int32())
_STAGE = pa.struct([
    ("update", pa.int32()), ("staleness", pa.int32()), ("mu", pa.float64()), ("sigma", pa.float64()),
    ("count", pa.int32()), ("c_low", pa.float64()), ("c_high", pa.float64()),
])  # fmt: skip

SCHEMA = pa.schema([
    *((name, pa.string()) for name in _TEXT), ("trial", pa.int32()), ("x", pa.float64()),
    ("objective", pa.string()), ("advantage", pa.string()), ("seed", pa.int32()), ("config", pa.string()),
    *((name, pa.string()) for name in ("status", "error", "version", "commit", "torch")),
    ("seconds", pa.float64()), ("cpu_seconds", pa.float64()),
    ("eval_steps", _WHOLE), ("eval_accuracy", _LONG), ("eval_worst", _LONG),
    *((name, pa.float64()) for name in _FINAL), ("collapsed", pa.bool_()), ("spikes", pa.int32()),
    ("length_first", pa.float64()), ("length_last", pa.float64()), ("skipped", pa.int32()),
    ("steps", _WHOLE), *((name, _SHORT) for name in CURVES),
    ("lengths", _WHOLE), ("count", _WHOLE), ("accepted", _LONG),
    ("all_count", _WHOLE), ("total", _LONG), ("square", _LONG), ("stages", pa.list_(_STAGE)),
    *((name, _SHORT) for name in ("h_steps", "h", "h_low", "h_high")),
    ("cosine_steps", _WHOLE), *((name, _SHORT) for name in ("cosine", "cosine_bound", "cosine_bound_full")),
    ("attributes", pa.string()),
])  # fmt: skip


class Store:
    """The file of a suite, and its rows in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._table = _read(path) if path.is_file() else SCHEMA.empty_table()
        self.rows: list[Row] = self._table.to_pylist()

    def add(self, row: Row) -> None:
        """On disk when this returns."""
        one = pa.Table.from_pylist([row], schema=SCHEMA)
        self._table = pa.concat_tables([self._table, one]).combine_chunks()
        self.rows += one.to_pylist()
        self._write()

    def put_first(self, rows: Iterable[Row]) -> None:
        """These rows in this order, then whatever else there was."""
        rows = list(rows)
        keys = {row["key"] for row in rows}
        self.rows = rows + [row for row in self.rows if row["key"] not in keys]
        self._table = pa.Table.from_pylist(self.rows, schema=SCHEMA)
        self._write()

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self.path.with_suffix(".writing")
        with open(scratch, "wb") as file:
            pq.write_table(self._table, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, self.path)


def read(path: Path) -> list[Row]:
    """The rows of a results file."""
    return _read(path).to_pylist()


def _read(path: Path) -> pa.Table:
    try:
        return pq.read_table(path).select(SCHEMA.names).cast(SCHEMA)
    except (pa.ArrowException, KeyError) as error:
        raise ValueError(f"{path} is not a results file of this version: {' '.join(str(error).split())}") from None
