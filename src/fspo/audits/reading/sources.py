"""Tables of any size as batches of rows: Parquet, JSON, JSON lines, CSV, folders of them, or frames in memory.

Memory is bounded by the batch, not by the file. A source maps a row to its file and number there (from 1, a header not
counted), so that a bad value can be named.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from fspo.audits.reading import text_files
from fspo.runs import rows as row_files

Schema = dict[str, pl.DataType]
SUFFIXES = (".parquet", *text_files.ENDINGS)
LARGE_GROUP = 1 << 25  # bytes: a larger row group is read in pieces, which is slower
PIECE = 1 << 24  # bytes
FRAME = "the frame"  # the name of data without a path


class UnusableFileError(ValueError):
    """A file without a table in it, such as an empty one; `name` is its path."""

    def __init__(self, name: str, sentence: str) -> None:
        super().__init__(f"{name} {sentence}")
        self.name = name


class UnreadableFileError(UnusableFileError):
    """A file that is damaged."""

    def __init__(self, name: str, why: object) -> None:
        super().__init__(name, f"cannot be read: {' '.join(str(why).split())[:200]}")


Unusable = Mapping[str, UnusableFileError]
"""Files that are left out, by name."""


class UntidyFileError(Exception):
    """A text file that polars cannot scan although its values are right: its rows must be written anew first."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(frozen=True)
class Source:
    """Files of one kind and one schema, or a frame."""

    names: list[str]
    stored: Schema
    counts: list[int] | None  # rows per file, where they are known without reading
    frame: pl.LazyFrame | pl.DataFrame | None = None
    text: text_files.TextFile | None = None

    @cached_property
    def schema(self) -> Schema:
        """The columns as `batches` has them: arrays of one size are lists."""
        arrays = {n: pl.List(kind.inner) for n, kind in self.stored.items() if isinstance(kind, pl.Array)}
        return self.stored | arrays

    def place(self, row: int) -> str:
        """`file, row n` of a row of this source; `row` is counted from 0 over all files."""
        if self.counts is not None and len(self.names) > 1:
            ends = list(accumulate(self.counts))
            k = next(i for i, end in enumerate(ends) if row < end)
            return f"{self.names[k]}, row {row - ends[k] + self.counts[k] + 1}"
        return f"{self.names[0]}, row {row + 1}"

    def batches(self, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        """The rows in order, with these columns; arrays of one size are lists."""
        arrays = [name for name in columns if isinstance(self.stored.get(name), pl.Array)]
        # A response that an update of a run left out, because it has no gradient, has no log-ratio.
        recorded = all(name in self.schema for name in row_files.NEEDED)
        for batch in self._batches(columns):
            if recorded and {"log_ratio", "advantage"} <= set(columns):
                batch = batch.filter(pl.col("log_ratio").is_not_null() | row_files.HAS_GRADIENT)
                if not batch.height:
                    continue
            yield batch.with_columns(pl.col(arrays).arr.to_list()) if arrays else batch

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

    def _explained(self, columns: Sequence[str], error: Exception) -> Exception:
        """What polars could not read: the row and the column are found by reading the file again, slowly."""
        if self.text is not None:
            found = self.text.first_bad({c: self.schema[c] for c in columns})
            if found:
                return ValueError(f"{self.names[0]}, {found}")
            if not self.text.tidied:
                return UntidyFileError(self.names[0])
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


def open_sources(data: Any, scratch: Path, unusable: Unusable, untidy: Collection[str]) -> list[Source]:
    """What `audit` was given: a frame, a table, columns in a dictionary, a path, or several paths.

    `scratch` is a folder for the text of files that cannot be scanned as they are, such as compressed ones and those in
    `untidy`. Files in `unusable` are left out.
    """
    if isinstance(data, pl.DataFrame | pl.LazyFrame):
        return [_frame(data)]
    if isinstance(data, str | Path):
        return _files([data], scratch, unusable, untidy)
    if isinstance(data, Sequence) and data and all(isinstance(part, str | Path) for part in data):
        return _files(data, scratch, unusable, untidy)
    if isinstance(data, dict) or hasattr(data, "__arrow_c_stream__"):  # pyarrow, pandas, datasets and others
        try:
            return [_frame(pl.DataFrame(data))]
        except (pl.exceptions.PolarsError, pa.ArrowException, TypeError) as error:
            raise ValueError(f"{FRAME} is no table: {str(error).splitlines()[0]}") from None
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
    try:
        return Source([FRAME], dict(frame.collect_schema()), count, frame)
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"{FRAME} cannot be read: {str(error).splitlines()[0]}") from None


def _files(paths: Iterable[str | Path], scratch: Path, unusable: Unusable, untidy: Collection[str]) -> list[Source]:
    sources = []
    names = list({os.path.realpath(name): name for path in paths for name in _expand(str(path))}.values())
    found = [_opened(name, scratch, name in untidy) for name in names if name not in unusable]
    if not found:
        raise unusable[names[0]]
    if not any(source.text or sum(source.counts or []) for source in found):
        said = f"{found[0].names[0]} has no rows" if len(found) == 1 else f"none of the {len(found)} files has a row"
        raise ValueError(f"{said}: there is nothing to audit")
    # Parquet files of the same schema are scanned together: thousands of scans are slow to join.
    for (text, _, _), group in groupby(found, lambda f: (f.text is not None, f.stored, f.text and f.names[0])):
        members = [source for source in group if source.counts != [0]]
        if text:
            sources += members
        elif members:
            names, counts = [m.names[0] for m in members], [n for m in members for n in m.counts or []]
            sources.append(Source(names, members[0].stored, counts))
    return sources


def _expand(path: str) -> list[str]:
    """The files of a path: itself, the rows of a run folder, the tables of another folder, or those of a pattern."""
    folder = Path(path)
    if folder.is_dir():
        tables = (p for p in folder.iterdir() if text_files.ending(p) in SUFFIXES and p.is_file())
        inside = row_files.files(folder) or sorted(tables)
        if not inside:
            raise ValueError(
                f"the folder {path} has neither rows of a run nor tables ({', '.join(SUFFIXES)}): for tables in "
                f"folders below it, give a pattern such as '{folder / '**' / '*.parquet'}'"
            )
        return [str(p) for p in inside]
    matched = [path] if folder.is_file() else sorted(glob.glob(path, recursive=True))
    names = [name for name in matched if Path(name).is_file()]
    if not names:
        raise ValueError(f"there is no file {path}")
    return names


def _opened(name: str, scratch: Path, untidy: bool) -> Source:
    """A file, with the number of its rows if it states it."""
    path = Path(name)
    kind = text_files.ending(path)
    if kind not in SUFFIXES:
        raise ValueError(f"{name} has an unknown ending: use one of {', '.join(SUFFIXES)}, or .gz or .zst after it")
    if not path.stat().st_size:
        raise UnusableFileError(name, "is empty: there is nothing to audit")
    try:
        if kind == ".parquet":
            schema = pl.scan_parquet(path, glob=False).collect_schema()
            return Source([name], dict(schema), [pq.read_metadata(path).num_rows])
        text = text_files.TextFile(path, scratch, untidy)
        return Source([name], text.schema(), None, text=text)
    except text_files.NoTableError as error:
        raise UnusableFileError(name, str(error)) from None
    except (pl.exceptions.PolarsError, pa.ArrowException, OSError) as error:
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
            except (pa.ArrowException, OSError) as error:
                raise UnreadableFileError(name, error) from None
