"""Tables of any size as batches of rows: Parquet, JSON lines, CSV, folders of them, or frames in memory.

Memory is bounded by the batch, not by the file. A source maps a row to its file and number there (from 1, a header not
counted), so that a bad value can be named.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq

from fspo.audits import text_files
from fspo.runs import rows as row_files

Schema = dict[str, pl.DataType]
SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".csv")
LARGE_GROUP = 1 << 25  # bytes: a larger row group is read in pieces, which is slower
PIECE = 1 << 24  # bytes
FRAME = "the frame"  # the name of data without a path


@dataclass(frozen=True)
class Source:
    """Files of one kind and one schema, or a frame."""

    names: list[str]
    schema: Schema
    counts: list[int] | None  # rows per file, where they are known without reading
    frame: pl.LazyFrame | pl.DataFrame | None = None

    @property
    def kind(self) -> str:
        return "frame" if self.frame is not None else Path(self.names[0]).suffix.lower()

    def place(self, row: int) -> str:
        """`file, row n` of a row of this source; `row` is counted from 0 over all files."""
        if self.counts is not None and len(self.names) > 1:
            ends = list(accumulate(self.counts))
            k = next(i for i, end in enumerate(ends) if row < end)
            return f"{self.names[k]}, row {row - ends[k] + self.counts[k] + 1}"
        return f"{self.names[0]}, row {row + 1}"

    def batches(self, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        """The rows in order, with these columns."""
        if isinstance(self.frame, pl.DataFrame):
            yield from self.frame.select(columns).iter_slices(1 << 17)
            return
        if self.kind == ".parquet" and _large(self.names, columns):
            yield from _pieces(self.names, columns)
            return
        try:
            yield from self._scan(columns).select(columns).collect_batches()
        except pl.exceptions.PolarsError as error:
            raise ValueError(self._sentence(columns, error)) from None

    def _scan(self, columns: Sequence[str]) -> pl.LazyFrame:
        if isinstance(self.frame, pl.LazyFrame):
            return self.frame
        if self.kind == ".parquet":
            return pl.scan_parquet(self.names, glob=False)
        # A column that is empty in the rows that gave the schema may still hold numbers.
        types = {c: pl.Float64() if self.schema[c] == pl.Null() else self.schema[c] for c in columns}
        if self.kind != ".csv":
            return pl.scan_ndjson(self.names[0], schema=types)
        flags = [c for c, kind in types.items() if kind == pl.Boolean()]
        scan = pl.scan_csv(self.names[0], schema_overrides=types | dict.fromkeys(flags, pl.String()), glob=False)
        words = pl.col(flags).str.to_lowercase()
        return scan.with_columns(words.replace_strict({"true": True, "false": False}, return_dtype=pl.Boolean))

    def _sentence(self, columns: Sequence[str], error: Exception) -> str:
        """What polars could not read: the row and the column are found by reading the file again, slowly."""
        if self.kind in (".csv", ".jsonl", ".ndjson"):
            found = text_files.first_bad(Path(self.names[0]), {c: self.schema[c] for c in columns})
            if found:
                return f"{self.names[0]}, {found}"
        return f"{self.names[0]} cannot be read: {' '.join(str(error).split())[:200]}"


def open_sources(data: Any) -> list[Source]:
    """What `audit` was given: a frame, a table, columns in a dictionary, a path, or several paths."""
    if isinstance(data, pl.DataFrame | pl.LazyFrame):
        return [_frame(data)]
    if isinstance(data, dict):
        return [_frame(pl.DataFrame(data))]
    if isinstance(data, str | Path):
        return _files([data])
    if isinstance(data, Sequence) and data and all(isinstance(part, str | Path) for part in data):
        return _files(data)
    if hasattr(data, "__arrow_c_stream__"):  # pyarrow, pandas, datasets and others
        return [_frame(pl.DataFrame(data))]
    raise ValueError(
        f"audit reads a path, several paths, a frame or a dictionary of columns, not {type(data).__name__}"
    )


def named(data: Any) -> str:
    """The name of the data as it was given: of a folder, not of the files in it."""
    if isinstance(data, str | Path):
        return str(data)
    if isinstance(data, Sequence):
        return f"{data[0]} and {len(data) - 1} more" if len(data) > 1 else str(data[0])
    return FRAME


def _frame(frame: pl.DataFrame | pl.LazyFrame) -> Source:
    count = [frame.height] if isinstance(frame, pl.DataFrame) else None
    if count == [0]:
        raise ValueError(f"{FRAME} has no rows: there is nothing to audit")
    return Source([FRAME], dict(frame.collect_schema()), count, frame)


def _files(paths: Iterable[str | Path]) -> list[Source]:
    sources = []
    found = [(name, *_opened(name)) for path in paths for name in _expand(str(path))]
    if not any(count is None or count for _, _, count in found):
        said = f"{found[0][0]} has no rows" if len(found) == 1 else f"none of the {len(found)} files has a row"
        raise ValueError(f"{said}: there is nothing to audit")
    # Parquet files of the same schema are scanned together: thousands of scans are slow to join.
    for (joint, _, _), group in groupby(found, lambda f: (f[2] is not None, f[1], f[2] is not None or f[0])):
        members = [f for f in group if f[2] != 0]
        if members:
            counts = [f[2] for f in members] if joint else None
            sources.append(Source([f[0] for f in members], members[0][1], counts))  # type: ignore[arg-type]
    return sources


def _expand(path: str) -> list[str]:
    """The files of a path: itself, the rows of a run folder, the tables of another folder, or those of a pattern."""
    folder = Path(path)
    if folder.is_dir():
        tables = (p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and p.is_file())
        inside = row_files.files(folder) or sorted(tables)
        if not inside:
            raise ValueError(f"the folder {path} has neither rows of a run nor tables ({', '.join(SUFFIXES)})")
        return [str(p) for p in inside]
    names = [path] if folder.is_file() else sorted(glob.glob(path, recursive=True))
    if not names:
        raise ValueError(f"there is no file {path}")
    return [name for name in names if not Path(name).is_dir()]


def _opened(name: str) -> tuple[Schema, int | None]:
    """The schema of a file, and the number of its rows if the file states it."""
    path = Path(name)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{name} has an unknown ending: use one of {', '.join(SUFFIXES)}")
    if not path.stat().st_size:
        raise ValueError(f"{name} is empty: there is nothing to audit")
    try:
        if suffix == ".parquet":
            return dict(pl.read_parquet_schema(path)), pq.read_metadata(path).num_rows
        return text_files.schema(path), None
    except (pl.exceptions.PolarsError, OSError) as error:
        raise ValueError(f"{name} cannot be read: {' '.join(str(error).split())[:200]}") from None


def _large(names: Sequence[str], columns: Sequence[str]) -> bool:
    """Whether a row group is too large to be decoded at once."""
    return any(
        _bytes(meta.row_group(i), columns) > LARGE_GROUP
        for meta in map(pq.read_metadata, names)
        for i in range(meta.num_row_groups)
    )


def _bytes(group: Any, columns: Sequence[str]) -> int:
    chunks = (group.column(i) for i in range(group.num_columns))
    return sum(c.total_uncompressed_size for c in chunks if c.path_in_schema.split(".")[0] in columns)


def _pieces(names: Sequence[str], columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    """Rows of large row groups, a few megabytes at a time."""
    for name in names:
        with pq.ParquetFile(name, buffer_size=1 << 20, pre_buffer=False) as file:
            meta = file.metadata
            size = sum(_bytes(meta.row_group(i), columns) for i in range(meta.num_row_groups))
            rows_per_piece = max(1, PIECE * meta.num_rows // max(1, size))
            for batch in file.iter_batches(rows_per_piece, columns=list(columns)):
                yield pl.DataFrame(batch)
