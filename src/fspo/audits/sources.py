"""Tables of any size as batches of rows: Parquet, JSON, JSON lines, CSV, folders of them, or frames in memory.

Memory is bounded by the batch, not by the file. A source maps a row to its file and number there (from 1, a header not
counted), so that a bad value can be named.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq

from fspo.audits import text_files
from fspo.runs import rows as row_files

Schema = dict[str, pl.DataType]
SUFFIXES = (".parquet", *text_files.ENDINGS)
LARGE_GROUP = 1 << 25  # bytes: a larger row group is read in pieces, which is slower
PIECE = 1 << 24  # bytes
FRAME = "the frame"  # the name of data without a path


class UnreadableFileError(ValueError):
    """A file that is damaged; `name` is its path."""

    def __init__(self, name: str, why: object) -> None:
        super().__init__(f"{name} cannot be read: {' '.join(str(why).split())[:200]}")
        self.name = name


Damaged = Mapping[str, UnreadableFileError]
"""Damaged files by name."""


@dataclass(frozen=True)
class Source:
    """Files of one kind and one schema, or a frame."""

    names: list[str]
    schema: Schema
    counts: list[int] | None  # rows per file, where they are known without reading
    frame: pl.LazyFrame | pl.DataFrame | None = None
    text: text_files.TextFile | None = None

    def place(self, row: int) -> str:
        """`file, row n` of a row of this source; `row` is counted from 0 over all files."""
        if self.counts is not None and len(self.names) > 1:
            ends = list(accumulate(self.counts))
            k = next(i for i, end in enumerate(ends) if row < end)
            return f"{self.names[k]}, row {row - ends[k] + self.counts[k] + 1}"
        return f"{self.names[0]}, row {row + 1}"

    def batches(self, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        """The rows in order, with these columns."""
        present = [name for name in columns if name in self.schema]
        lacking = [pl.lit(None).alias(name) for name in columns if name not in self.schema]
        # A response that an update of a run left out, because it has no gradient, has no log-ratio.
        recorded = all(name in self.schema for name in row_files.NEEDED)
        for batch in self._batches(present):
            if recorded and {"log_ratio", "advantage"} <= set(present):
                batch = batch.filter(pl.col("log_ratio").is_not_null() | row_files.HAS_GRADIENT)
                if not batch.height:
                    continue
            yield batch.with_columns(lacking) if lacking else batch

    def _batches(self, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        if isinstance(self.frame, pl.DataFrame):
            yield from self.frame.select(columns).iter_slices(1 << 17)
            return
        if self.frame is None and self.text is None and _large(self.names, columns):
            yield from _pieces(self.names, columns)
            return
        try:
            yield from self._scan(columns).select(columns).collect_batches()
        except pl.exceptions.PolarsError as error:
            raise self._explained(columns, error) from None

    def _scan(self, columns: Sequence[str]) -> pl.LazyFrame:
        if isinstance(self.frame, pl.LazyFrame):
            return self.frame
        if self.text is None:
            return pl.scan_parquet(self.names, glob=False)
        # A column that is empty in the rows that gave the schema may still hold numbers.
        return self.text.scan({c: pl.Float64() if self.schema[c] == pl.Null() else self.schema[c] for c in columns})

    def _explained(self, columns: Sequence[str], error: Exception) -> ValueError:
        """What polars could not read: the row and the column are found by reading the file again, slowly."""
        found = self.text and self.text.first_bad({c: self.schema[c] for c in columns})
        if found:
            return ValueError(f"{self.names[0]}, {found}")
        name = self.names[0] if self.text or self.frame is not None else self._damaged(columns)
        return UnreadableFileError(name, error)

    def _damaged(self, columns: Sequence[str]) -> str:
        """The first of the Parquet files whose pages cannot be read; they are scanned together."""
        for name in self.names:
            try:
                pl.scan_parquet(name, glob=False).select(columns).collect()
            except pl.exceptions.PolarsError:
                return name
        return self.names[0]


def open_sources(data: Any, scratch: Path, damaged: Damaged) -> list[Source]:
    """What `audit` was given: a frame, a table, columns in a dictionary, a path, or several paths.

    `scratch` is a folder for the text of files that cannot be scanned as they are, such as compressed ones. Files in
    `damaged` are left out.
    """
    if isinstance(data, pl.DataFrame | pl.LazyFrame):
        return [_frame(data)]
    if isinstance(data, dict):
        return [_frame(pl.DataFrame(data))]
    if isinstance(data, str | Path):
        return _files([data], scratch, damaged)
    if isinstance(data, Sequence) and data and all(isinstance(part, str | Path) for part in data):
        return _files(data, scratch, damaged)
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


def _files(paths: Iterable[str | Path], scratch: Path, damaged: Damaged) -> list[Source]:
    sources = []
    names = [name for path in paths for name in _expand(str(path))]
    found = [_opened(name, scratch) for name in names if name not in damaged]
    if not found:
        raise damaged[names[0]]
    if not any(source.text or sum(source.counts or []) for source in found):
        said = f"{found[0].names[0]} has no rows" if len(found) == 1 else f"none of the {len(found)} files has a row"
        raise ValueError(f"{said}: there is nothing to audit")
    # Parquet files of the same schema are scanned together: thousands of scans are slow to join.
    for (text, _, _), group in groupby(found, lambda f: (f.text is not None, f.schema, f.text and f.names[0])):
        members = [source for source in group if source.counts != [0]]
        if text:
            sources += members
        elif members:
            names, counts = [m.names[0] for m in members], [n for m in members for n in m.counts or []]
            sources.append(Source(names, members[0].schema, counts))
    return sources


def _expand(path: str) -> list[str]:
    """The files of a path: itself, the rows of a run folder, the tables of another folder, or those of a pattern."""
    folder = Path(path)
    if folder.is_dir():
        tables = (p for p in folder.iterdir() if text_files.ending(p) in SUFFIXES and p.is_file())
        inside = row_files.files(folder) or sorted(tables)
        if not inside:
            raise ValueError(f"the folder {path} has neither rows of a run nor tables ({', '.join(SUFFIXES)})")
        return [str(p) for p in inside]
    names = [path] if folder.is_file() else sorted(glob.glob(path, recursive=True))
    if not names:
        raise ValueError(f"there is no file {path}")
    return [name for name in names if not Path(name).is_dir()]


def _opened(name: str, scratch: Path) -> Source:
    """A file, with the number of its rows if it states it."""
    path = Path(name)
    kind = text_files.ending(path)
    if kind not in SUFFIXES:
        raise ValueError(f"{name} has an unknown ending: use one of {', '.join(SUFFIXES)}, or .gz or .zst after it")
    if not path.stat().st_size:
        raise ValueError(f"{name} is empty: there is nothing to audit")
    try:
        if kind == ".parquet":
            return Source([name], dict(pl.read_parquet_schema(path)), [pq.read_metadata(path).num_rows])
        text = text_files.TextFile(path, scratch)
        return Source([name], text.schema(), None, text=text)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise UnreadableFileError(name, error) from None


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
            try:
                for batch in file.iter_batches(rows_per_piece, columns=list(columns)):
                    yield pl.DataFrame(batch)
            except OSError as error:
                raise UnreadableFileError(name, error) from None
