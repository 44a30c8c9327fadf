"""Text tables row by row, with the standard library: their schema, and the first row that cannot be read.

Slow, so only the first rows are read for the schema, and a whole file only to say what is wrong with it.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl

LOOK = 1000  # rows that decide what a column holds

Row = dict[str, Any]


def schema(path: Path) -> dict[str, pl.DataType]:
    """Names and types of the columns, by the first rows; numbers are floats."""
    types: dict[str, pl.DataType] = {}
    for n, row in enumerate(islice(_rows(path), LOOK), 1):
        if isinstance(row, str):
            raise ValueError(f"{path}, row {n} {row}")
        for name, value in row.items():
            kind = _kind(value, path.suffix.lower() == ".csv")
            if types.get(name, pl.Null()) == pl.Null() or (types[name] == pl.List(pl.Null()) and kind != pl.Null()):
                types[name] = kind
    if not types:
        raise ValueError(f"{path} has no rows: there is nothing to audit")
    return types


def first_bad(path: Path, types: Mapping[str, pl.DataType]) -> str | None:
    """`row n, column 'x' ...` of the first value that is not what the column holds."""
    for n, row in enumerate(_rows(path), 1):
        if isinstance(row, str):
            return f"row {n} {row}"
        for name, wanted in types.items():
            value = row.get(name)
            if isinstance(value, float) and not math.isfinite(value):
                return f"row {n}, column {name!r} is {value}, which is not JSON: write null"
            kind = _kind(value, path.suffix.lower() == ".csv")
            if kind not in (wanted, pl.Null()) and not (isinstance(kind, pl.List) and isinstance(wanted, pl.List)):
                return f"row {n}, column {name!r} is {_shown(value)} where {_said(wanted)} is needed"
            if isinstance(wanted, pl.List):
                for item in value or ():
                    if isinstance(item, bool) or not isinstance(item, int | float) or not math.isfinite(item):
                        return f"row {n}, column {name!r} holds {_shown(item)} among its numbers"
    return None


def _rows(path: Path) -> Iterator[Row | str]:
    """The rows; a string in the place of a row that cannot be parsed says why."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        if path.suffix.lower() == ".csv":
            reader = csv.reader(file)
            names = next(reader, [])
            for values in reader:
                if len(values) != len(names):
                    yield f"has {len(values)} fields where the header has {len(names)}"
                    return
                yield dict(zip(names, values, strict=True))
            return
        for line in file:
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                yield "is not a line of JSON"
                return
            if not isinstance(row, dict):
                yield f"is {_shown(row)} where an object is needed"
                return
            yield row


def _kind(value: Any, text: bool) -> pl.DataType:
    if text:
        if value == "":
            return pl.Null()
        if value.lower() in ("true", "false"):
            return pl.Boolean()
        try:
            float(value)
        except ValueError:
            return pl.String()
        return pl.Float64()
    if value is None:
        return pl.Null()
    if isinstance(value, bool):
        return pl.Boolean()
    if isinstance(value, int | float):
        return pl.Float64()
    if isinstance(value, list):
        first = next((_kind(item, False) for item in value if item is not None), pl.Null())
        return pl.List(first)
    return pl.String() if isinstance(value, str) else pl.Object()


def _said(kind: pl.DataType) -> str:
    if isinstance(kind, pl.List):
        return "a list of numbers"
    return "true or false" if kind == pl.Boolean() else "text" if kind == pl.String() else "a number"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
