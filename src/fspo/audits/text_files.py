"""CSV and JSON lines row by row: the schema of a table, and the first row that cannot be read.

This is slow: the schema is taken from the first rows, and a whole file is read only to name the row that polars could
not read.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl

from fspo.files import BadLine, json_lines

SCHEMA_ROWS = 1000  # rows that decide what a column holds

Row = dict[str, Any]


def schema(path: Path) -> dict[str, pl.DataType]:
    """Names and types of the columns, from the first rows; all numbers are floats."""
    types: dict[str, pl.DataType] = {}
    text = path.suffix.lower() == ".csv"
    for n, row in enumerate(islice(_rows(path), SCHEMA_ROWS), 1):
        if isinstance(row, str):
            raise ValueError(f"{path}, row {n} {row}")
        for name, value in row.items():
            kind = _kind(value, text)
            if types.get(name, pl.Null()) == pl.Null() or (types[name] == pl.List(pl.Null()) and kind != pl.Null()):
                types[name] = kind
    if not types:
        raise ValueError(f"{path} has no rows: there is nothing to audit")
    return types


def first_bad(path: Path, types: Mapping[str, pl.DataType]) -> str | None:
    """`row n, column 'x' ...` of the first value that is not of its column's type."""
    text = path.suffix.lower() == ".csv"
    for n, row in enumerate(_rows(path), 1):
        if isinstance(row, str):
            return f"row {n} {row}"
        for name, wanted in types.items():
            value = row.get(name)
            if isinstance(value, float) and not math.isfinite(value):
                return f"row {n}, column {name!r} is {value}, which is not JSON: write null"
            kind = _kind(value, text)
            if kind not in (wanted, pl.Null()) and not (isinstance(kind, pl.List) and isinstance(wanted, pl.List)):
                return f"row {n}, column {name!r} is {_shown(value)} where {_needed(wanted)} is needed"
            if isinstance(wanted, pl.List):
                for item in value or ():
                    if isinstance(item, bool) or not isinstance(item, int | float) or not math.isfinite(item):
                        return f"row {n}, column {name!r} holds {_shown(item)} among its numbers"
    return None


def _rows(path: Path) -> Iterator[Row | str]:
    """The rows; for a row that cannot be parsed, a string that states the problem, such as "is not JSON"."""
    if path.suffix.lower() != ".csv":
        for line in json_lines(path):
            yield line.problem if isinstance(line, BadLine) else line
        return
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        reader = csv.reader(file)
        names = next(reader, [])
        for values in reader:
            if len(values) == len(names):
                yield dict(zip(names, values, strict=True))
            else:
                yield f"has {len(values)} fields where the header has {len(names)}"


def _kind(value: Any, text: bool) -> pl.DataType:
    """The type of a value; `text` if it is the text of a number, a flag or words, as in CSV."""
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


def _needed(kind: pl.DataType) -> str:
    if isinstance(kind, pl.List):
        return "a list of numbers"
    return "true or false" if kind == pl.Boolean() else "text" if kind == pl.String() else "a number"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
