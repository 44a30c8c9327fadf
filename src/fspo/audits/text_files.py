"""CSV, TSV, JSON and JSON lines, compressed or not: the schema of a table, its scan, and the first unreadable row.

Reading row by row is slow: the types are taken from the first rows, later rows only add columns, and a whole file is
read row by row only to name the row that polars could not read.
"""

from __future__ import annotations

import csv
import json
import math
import shutil
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from fspo.files import BadLine, json_lines

ENDINGS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
SCHEMA_ROWS = 1000  # rows that decide what a column holds
SEPARATORS = ",;\t"
BOM = b"\xef\xbb\xbf"

Row = dict[str, Any]


def ending(path: Path) -> str:
    """The ending that states the format: .csv for rows.csv.gz."""
    name = Path(path.stem) if path.suffix.lower() in COMPRESSED else path
    kind = name.suffix.lower()
    return kind if path is name or kind in ENDINGS else path.suffix.lower()


class TextFile:
    """A table of text; what polars cannot scan as it is (compressed, a JSON list, a mark or blank lines) is copied."""

    def __init__(self, path: Path, scratch: Path) -> None:
        self.name, kind = str(path), ending(path)
        self.separated = kind in (".csv", ".tsv")
        self.path = self._plain(path, scratch / str(len(list(scratch.iterdir()))))
        if kind == ".json":
            self.path = self._lines(self.path, scratch / f"{len(list(scratch.iterdir()))}")
        self.separator = ","
        if self.separated:
            with self.path.open(encoding="utf-8-sig", errors="replace") as file:
                header = file.readline()
            self.separator = max("\t,;" if kind == ".tsv" else SEPARATORS, key=header.count)

    def schema(self) -> dict[str, pl.DataType]:
        """Names and types of the columns; all numbers are floats, and a column of numbers and words is text."""
        types: dict[str, pl.DataType] = {}
        count = 0
        for count, row in enumerate(islice(self._rows(), SCHEMA_ROWS), 1):
            if isinstance(row, str):
                raise ValueError(f"{self.name}, row {count} {row}")
            for name, value in row.items():
                types[name] = _joined(types.get(name, pl.Null()), _kind(value, self.separated))
        if not types or not count:
            raise ValueError(f"{self.name} has no rows: there is nothing to audit")
        if count == SCHEMA_ROWS and not (self.separated and pl.Null() not in types.values()):
            for name, kind in self._all_columns().items():
                if types.get(name, pl.Null()) == pl.Null():
                    types[name] = kind
        return types

    def scan(self, types: Mapping[str, pl.DataType]) -> pl.LazyFrame:
        if not self.separated:
            return pl.scan_ndjson(self.path, schema=dict(types))
        return pl.scan_csv(self.path, schema_overrides=dict(types), separator=self.separator, glob=False)

    def first_bad(self, types: Mapping[str, pl.DataType]) -> str | None:
        """`row n, column 'x' ...` of the first value that is not of its column's type."""
        for n, row in enumerate(self._rows(), 1):
            if isinstance(row, str):
                return f"row {n} {row}"
            for name, wanted in types.items():
                value = row.get(name)
                if isinstance(value, float) and not math.isfinite(value):
                    return f"row {n}, column {name!r} is {value}, which is not JSON: write null"
                kind = _kind(value, self.separated)
                if wanted == pl.String() and not isinstance(kind, pl.List | pl.Struct):
                    continue
                if kind not in (wanted, pl.Null()) and not (isinstance(kind, pl.List) and isinstance(wanted, pl.List)):
                    return f"row {n}, column {name!r} is {_shown(value)} where {_needed(wanted)} is needed"
                if isinstance(wanted, pl.List) and wanted.inner.is_numeric():
                    for item in value or ():
                        if isinstance(item, bool) or not isinstance(item, int | float) or not math.isfinite(item):
                            return f"row {n}, column {name!r} holds {_shown(item)} among its numbers"
        return None

    def _all_columns(self) -> dict[str, pl.DataType]:
        """The columns of all rows, as polars infers them; none if it cannot read the file."""
        try:
            if self.separated:
                scan = pl.scan_csv(self.path, separator=self.separator, infer_schema_length=None, glob=False)
            else:
                scan = pl.scan_ndjson(self.path, infer_schema_length=None)
            return {name: _floats(kind) for name, kind in scan.collect_schema().items()}
        except pl.exceptions.PolarsError:
            return {}

    def _rows(self) -> Iterator[Row | str]:
        """The rows; for a row that cannot be parsed, a string that states the problem, such as "is not JSON"."""
        if not self.separated:
            for line in json_lines(self.path):
                yield line.problem if isinstance(line, BadLine) else line
            return
        with self.path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            reader = csv.reader(file, delimiter=self.separator)
            names = next(reader, [])
            for values in reader:
                if len(values) == len(names):
                    yield dict(zip(names, values, strict=True))
                elif values:
                    yield f"has {len(values)} fields where the header has {len(names)}"

    def _plain(self, path: Path, copy: Path) -> Path:
        """The file itself, or a copy of it that is not compressed, has no byte order mark and no blank end."""
        how = COMPRESSED.get(path.suffix.lower())
        if how:
            with pa.input_stream(str(path), compression=how) as source, copy.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
            path = copy
        with path.open("rb") as file:
            marked = file.read(3) == BOM and not self.separated  # polars skips the mark of a CSV file
            end = file.seek(0, 2)
            file.seek(max(0, end - (1 << 16)))
            tail = file.read()
        blank = len(tail) - len(tail.rstrip())
        if not marked and (not self.separated or blank <= 2):
            return path
        other = copy.with_suffix(".plain")
        with path.open("rb") as source, other.open("wb") as target:
            source.seek(3 if marked else 0)
            shutil.copyfileobj(source, target, 1 << 20)
            target.truncate(target.tell() - blank)
            target.seek(0, 2)
            target.write(b"\n")
        return other

    def _lines(self, path: Path, copy: Path) -> Path:
        """The objects of a JSON list as lines. Lines that end in .json are read as they are."""
        try:
            rows = json.loads(path.read_text(encoding="utf-8-sig", errors="replace"))
        except (ValueError, RecursionError):
            return path
        if not isinstance(rows, list):
            raise ValueError(f"{self.name} holds one object where a list of objects, one per answer, is needed")
        for n, row in enumerate(rows, 1):
            if not isinstance(row, dict):
                raise ValueError(f"{self.name}, row {n} is not a JSON object")
        copy.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return copy


def _joined(one: pl.DataType, other: pl.DataType) -> pl.DataType:
    """The type of a column that holds values of both: the first that is known, or text for scalars that differ."""
    if one == pl.Null() or (one == pl.List(pl.Null()) and other != pl.Null()):
        return other
    scalars = (pl.Float64(), pl.Boolean(), pl.String())
    return pl.String() if one != other and one in scalars and other in scalars else one


def _floats(kind: pl.DataType) -> pl.DataType:
    if isinstance(kind, pl.List):
        return pl.List(_floats(kind.inner))  # type: ignore[arg-type]
    return pl.Float64() if kind.is_numeric() else kind


def _kind(value: Any, text: bool) -> pl.DataType:
    """The type of a value; `text` if it is the text of a number or words, as in CSV."""
    if text:
        if value == "":
            return pl.Null()
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
    if isinstance(value, dict) and "content" in value:  # a message
        return pl.Struct({"content": pl.String()})
    return pl.String() if isinstance(value, str) else pl.Object()


def _needed(kind: pl.DataType) -> str:
    if isinstance(kind, pl.List):
        return "a list of numbers"
    return "true or false" if kind == pl.Boolean() else "text" if kind == pl.String() else "a number"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
