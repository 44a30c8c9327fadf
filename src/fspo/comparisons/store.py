"""The results of a suite: one Parquet file with one row per finished cell, complete after every write."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fspo.comparisons.outcome import CURVES
from fspo.comparisons.plan import Row, current, key_of
from fspo.files import replacing

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
    ("all_count", _INTEGERS), ("total", _DOUBLES), ("square", _DOUBLES),
    ("cosine_steps", _INTEGERS), *((name, _FLOATS) for name in ("cosine", "cosine_bound", "cosine_bound_full")),
    ("gains", pa.list_(_GAIN)), ("features", pa.string()), ("optimum", pa.string()),
])  # fmt: skip
"""The columns: those of `Cell.labels`, of the cell's run (`run_cell`), and those of `outcome`."""

NO_OUTCOME = {"suite", "key", "schema", "config", "objective", "seconds", "cpu_seconds", "version", "commit", "torch"}


class Store:
    """The results file of a suite, and its rows in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[Row] = read(path) if path.is_file() else []
        self._table = pa.Table.from_pylist(self.rows, schema=SCHEMA)

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
    """The rows of a results file or of the file in a folder, with the names and keys that they have now."""
    path = path / "results.parquet" if path.is_dir() else path
    try:
        rows: list[Row] = pq.read_table(path).select(SCHEMA.names).cast(SCHEMA).to_pylist()
    except (pa.ArrowException, KeyError, FileNotFoundError) as error:
        raise ValueError(f"{path} is not a results file of this version: {' '.join(str(error).split())}") from None
    for row in rows:
        config = current(json.loads(row["config"]))
        row |= {"config": json.dumps(config), "key": key_of(config, row["warm_start"], row["schema"])}
    return rows


def differences(old: Row, new: Row) -> list[str]:
    """The outcome columns that differ, with the largest relative difference of their numbers.

    A column that is null in the old row was measured later, and is not compared.
    """
    result = []
    for name in sorted(key for key, value in old.items() if value is not None and key not in NO_OUTCOME):
        a, b = _flat(old[name]), _flat(new[name])
        if a != b:
            pairs = [(x, y) for x, y in zip(a, b, strict=False) if isinstance(x, float) and isinstance(y, float)]
            size = max((abs(x - y) / (abs(x) or 1) for x, y in pairs), default=float("nan"))
            result.append(f"{name} differs by up to {size:.1e}" if len(a) == len(b) else f"{name} has another shape")
    return result


def _flat(value: Any) -> list[Any]:
    """A value, and all that it holds, as one list; numbers as floats, NaN as text so that it equals itself."""
    if isinstance(value, dict):
        return [item for key in value for item in [key, *_flat(value[key])]]
    if isinstance(value, list | tuple):
        return [item for part in value for item in _flat(part)]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return [float(value) if value == value else "nan"]
    return [value]
