"""CSV, TSV, JSON and JSON lines, compressed or not: the schema of a table, its scan, and the first unreadable row.

Reading row by row is slow: the types are taken from the first rows, later rows only add columns, and a whole file is
read row by row only to name the row that polars could not read, or to write anew what polars cannot scan as it is.
"""

from __future__ import annotations

import codecs
import csv
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from fspo.audits.reading.text_kinds import finite, floats, joined, kind_of, needed, plain_value, shown
from fspo.files import BadLine, json_lines

ENDINGS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
SCHEMA_ROWS = 1000  # rows that decide what a column holds
SEPARATORS = ",;\t|"
WIDE = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}  # marks of two-byte text, as Excel writes it
MAGIC = {b"PAR1": "a Parquet file: name it .parquet", b"\x1f\x8b": "compressed: name it .gz",
         b"\x28\xb5\x2f\xfd": "compressed: name it .zst"}  # fmt: skip
BLANK_LINE = re.compile(rb"\n[ \t]*\r?\n[ \t\r\n]*[^ \t\r\n]")  # not at the end of the file
BLANK_STARTS = (b"\n\n", b"\n\r", b"\n ", b"\n\t")
DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+([eE][-+]?\d+)?")

Row = dict[str, Any]


class NoTableError(ValueError):
    """Why a file, whose name goes before this text, has no table in it."""


def ending(path: Path) -> str:
    """The ending that states the format: .csv for rows.csv.gz."""
    name = Path(path.stem) if path.suffix.lower() in COMPRESSED else path
    kind = name.suffix.lower()
    return kind if path is name or kind in ENDINGS else path.suffix.lower()


class TextFile:
    """A table of text; what polars cannot scan as it is (compressed, a JSON list, a mark or blank lines) is copied."""

    def __init__(self, path: Path, scratch: Path, untidy: bool = False) -> None:
        self.name, kind, self._scratch = str(path), ending(path), scratch
        self.separated, self.decimal_comma = kind in (".csv", ".tsv"), False
        self.path = self._plain(path)
        self.separator = ","
        if self.separated:
            with self.path.open(encoding="utf-8-sig", errors="replace") as file:
                header = next((line for line in file if line.strip()), "")
            if header.lstrip().startswith("{"):
                raise NoTableError("holds JSON where its name says CSV: name it .jsonl")
            self.separator = max("\t,;|" if kind == ".tsv" else SEPARATORS, key=header.count)
            names = [name.strip() for name in next(csv.reader([header], delimiter=self.separator), [])]
            if twice := [name for k, name in enumerate(names) if name and name in names[:k]]:
                raise NoTableError(f"has two columns named {twice[0]!r}: rename one of them")
            untidy = untidy or self._untidy(header)
        elif kind == ".json" or self._starts() == b"[":
            self.path = self._lines(self.path)
        self.tidied = untidy
        if untidy:
            self.path = self._tidy()
        elif not self.separated and set("*?[") & set(str(self.path)):  # polars takes these for a pattern
            link = self._copy()
            link.symlink_to(self.path.resolve())
            self.path = link

    def schema(self) -> dict[str, pl.DataType]:
        """Names and types of the columns; all numbers are floats, and a column of numbers and words is text."""
        types: dict[str, pl.DataType] = {}
        count = 0
        for count, row in enumerate(islice(self._rows(), SCHEMA_ROWS), 1):
            if isinstance(row, str):
                raise ValueError(f"{self.name}, row {count} {row}")
            for name, value in row.items():
                if self.separator == ";" and DECIMAL_COMMA.fullmatch(value):
                    self.decimal_comma = True
                types[name] = joined(types.get(name, pl.Null()), self._kind(value))
        if not types or not count:
            raise NoTableError("has no rows: there is nothing to audit")
        if count == SCHEMA_ROWS and not (self.separated and pl.Null() not in types.values()):
            for name, kind in self._all_columns().items():
                if types.get(name, pl.Null()) == pl.Null():
                    types[name] = kind
        return types

    def scan(self, types: Mapping[str, pl.DataType]) -> pl.LazyFrame:
        if not self.separated:
            return pl.scan_ndjson(self.path, schema=dict(types))
        lists = [name for name, kind in types.items() if isinstance(kind, pl.List)]
        kinds = {name: pl.String() if name in lists else kind for name, kind in types.items()}
        return self._csv(schema_overrides=kinds).with_columns(pl.col(lists).str.json_decode(pl.List(pl.Float64())))

    def first_bad(self, types: Mapping[str, pl.DataType]) -> str | None:
        """`row n, column 'x' ...` of the first value that is not of its column's type."""
        for n, row in enumerate(self._rows(), 1):
            if isinstance(row, str):
                return f"row {n} {row}"
            for name, wanted in types.items():
                value = row.get(name)
                kind = self._kind(value)
                if isinstance(value, int | float) and not finite(value):
                    why = "which is not JSON: write null" if isinstance(value, float) else "which is too large"
                    return f"row {n}, column {name!r} is {shown(value)}, {why}"
                if wanted == pl.String() and not isinstance(kind, pl.List | pl.Struct):
                    continue
                if kind not in (wanted, pl.Null()) and not (isinstance(kind, pl.List) and isinstance(wanted, pl.List)):
                    return f"row {n}, column {name!r} is {shown(value)} where {needed(wanted)} is needed"
                if isinstance(wanted, pl.List) and wanted.inner.is_numeric():
                    for item in (json.loads(value) if self.separated and value else value) or ():
                        if isinstance(item, bool) or not isinstance(item, int | float) or not finite(item):
                            return f"row {n}, column {name!r} holds {shown(item)} among its numbers"
        return None

    def _kind(self, value: Any) -> pl.DataType:
        if self.decimal_comma and value and DECIMAL_COMMA.fullmatch(value):
            return pl.Float64()
        return kind_of(value, self.separated)

    def _all_columns(self) -> dict[str, pl.DataType]:
        """The columns of all rows, as polars infers them; row by row if it cannot read the file."""
        try:
            scan = self._csv() if self.separated else pl.scan_ndjson(self.path, infer_schema_length=None)
            return {name: floats(kind) for name, kind in scan.collect_schema().items()}
        except pl.exceptions.PolarsError:
            found: dict[str, pl.DataType] = {}
            for row in self._rows():
                for name, value in () if isinstance(row, str) else row.items():
                    found[name] = joined(found.get(name, pl.Null()), self._kind(value))
            return found

    def _csv(self, **options: Any) -> pl.LazyFrame:
        return pl.scan_csv(
            self.path, separator=self.separator, decimal_comma=self.decimal_comma, glob=False,
            infer_schema_length=100 if options else None, **options,
        )  # fmt: skip

    def _rows(self) -> Iterator[Row | str]:
        """The rows; for a row that cannot be parsed, a string that states the problem, such as "is not JSON"."""
        if not self.separated:
            for line in json_lines(self.path):
                yield line.problem if isinstance(line, BadLine) else line
            return
        csv.field_size_limit(1 << 30)  # texts of answers may be long
        with self.path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            rows = (row for row in csv.reader(file, delimiter=self.separator) if any(map(str.strip, row)))
            try:
                names = [name.strip() for name in next(rows, [])]
                for values in rows:
                    if len(values) == len(names):
                        yield dict(zip(names, map(_stripped, values), strict=True))
                    else:
                        yield f"has {len(values)} fields where the header has {len(names)}"
            except csv.Error as error:
                yield f"cannot be read: {error}"

    # --- copies that polars can scan --------------------------------------------------------------------------------

    def _copy(self) -> Path:
        return self._scratch / f"{len(list(self._scratch.iterdir()))}.copy"

    def _starts(self) -> bytes:
        with self.path.open("rb") as file:
            return file.read(4096).lstrip()[:1]

    def _plain(self, path: Path) -> Path:
        """The file itself, or a copy of it that is not compressed, is UTF-8, and has no mark and no blank end."""
        how = COMPRESSED.get(path.suffix.lower())
        if how:
            copy = self._copy()
            with pa.input_stream(str(path), compression=how) as source, copy.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
            path = copy
        with path.open("rb") as file:
            start = file.read(4)
            end = file.seek(0, 2)
            file.seek(max(0, end - (1 << 16)))
            tail = file.read()
        if problem := next((text for magic, text in MAGIC.items() if start.startswith(magic)), None):
            raise NoTableError(f"is {problem}")
        wide = WIDE.get(start[:2])
        marked = start[:3] == codecs.BOM_UTF8 and not self.separated  # polars skips the mark of a CSV file
        blank = len(tail) - len(tail.rstrip()) if self.separated and not wide else 0
        if not marked and not wide and blank <= 2:
            return path
        copy = self._copy()
        with path.open("rb") as source, copy.open("wb") as target:
            if wide:
                shutil.copyfileobj(codecs.EncodedFile(source, "utf-8", wide, "replace"), target, 1 << 20)
                return self._plain(copy)
            source.seek(3 if marked else 0)
            shutil.copyfileobj(source, target, 1 << 20)
            target.truncate(target.tell() - blank)
            target.seek(0, 2)
            target.write(b"\n")
        return copy

    def _untidy(self, header: str) -> bool:
        """Whether a CSV file has spaces around its names, blank lines, or lines that end as on old Macs."""
        names = header.rstrip("\r\n").split(self.separator)
        if any(name != name.strip() for name in names):
            return True
        with self.path.open("rb") as file:
            first = file.read(1 << 16)
            if (b"\r" in first and b"\n" not in first) or first[:1].isspace():
                return True
            rest = first
            while rest:
                if any(start in rest for start in BLANK_STARTS) and BLANK_LINE.search(rest):
                    return True
                kept = rest[-256:] if len(rest) > 256 else b""
                more = file.read(1 << 20)
                rest = kept + more if more else b""
        return False

    def _tidy(self) -> Path:
        """A copy with the same rows, written anew: no blank lines or spaces, no NaN or numbers that are too large."""
        copy = self._copy()
        with copy.open("w", encoding="utf-8", errors="replace", newline="") as file:
            writer = csv.writer(file, delimiter=self.separator)
            for n, row in enumerate(self._rows(), 1):
                if isinstance(row, str):
                    raise ValueError(f"{self.name}, row {n} {row}")
                if not self.separated:
                    file.write(json.dumps(plain_value(row)) + "\n")
                    continue
                if n == 1:
                    writer.writerow(row)
                writer.writerow(row.values())
        return copy

    def _lines(self, path: Path) -> Path:
        """The objects of a JSON list as lines. Lines that end in .json are read as they are."""
        try:
            rows = json.loads(path.read_text(encoding="utf-8-sig", errors="replace"))
        except (ValueError, RecursionError):
            return path
        if not isinstance(rows, list):
            raise NoTableError("holds one object where a list of objects, one per answer, is needed")
        for n, row in enumerate(rows, 1):
            if not isinstance(row, dict):
                raise ValueError(f"{self.name}, row {n} is not a JSON object")
        copy = self._copy()
        copy.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return copy


def _stripped(cell: str) -> str:
    """A number without the spaces around it; other text as it is."""
    text = cell.strip()
    return text if kind_of(text, True) != pl.String() else cell
