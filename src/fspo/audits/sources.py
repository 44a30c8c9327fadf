"""Tables of any size as batches of rows: Parquet, JSON lines, JSON, CSV, TSV, folders of them, or frames in memory.

Memory is bounded by the batch or the row group, not by the file. A source maps a row to its file and number there
(from 1, a header not counted), so that a bad value can be named. Text is read as polars reads it; a file that polars
cannot read gets one sentence that says what it is and how to convert it.
"""

from __future__ import annotations

import glob
import io
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, NoReturn

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from fspo.audits import dumps
from fspo.runs import rows as row_files

Schema = dict[str, pl.DataType]
SEPARATORS = {".csv": ",", ".tsv": "\t"}
SUFFIXES = (".parquet", ".jsonl", ".ndjson", *SEPARATORS, ".json", ".pt")
PICKLES = (".pkl", ".pickle")
COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
BEGINNINGS = {
    b"PAR1": "is a Parquet file: name it .parquet",
    b"\x1f\x8b": "is compressed: name it .gz",
    b"\x28\xb5\x2f\xfd": "is compressed: name it .zst",
    b"\xff\xfe": "is UTF-16 text: convert it with iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "is UTF-16 text: convert it with iconv -f UTF-16 -t UTF-8",
}
FRAME = "the frame"  # the name of data without a path


@dataclass(frozen=True)
class Source:
    """Parquet files of one schema, one file of text, or a frame."""

    names: list[str]
    stored: Schema
    counts: list[int] | None  # rows per file, where they are known without reading
    frame: pl.LazyFrame | pl.DataFrame | None = None  # None: Parquet files
    trainer: str = ""  # whose dump it is

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
        scan = pl.scan_parquet(self.names, glob=False) if self.frame is None else self.frame
        try:
            yield from scan.select(columns).collect_batches()
        except pl.exceptions.PolarsError as error:
            _unreadable(self.names, error)


def open_sources(data: Any) -> list[Source]:
    """What `audit` was given: a frame, a table, columns in a dictionary, a path, or several paths."""
    if isinstance(data, pl.DataFrame | pl.LazyFrame):
        return [_frame(data)]
    if isinstance(data, str | Path):
        return _files([data])
    if isinstance(data, Sequence) and data and all(isinstance(part, str | Path) for part in data):
        return _files(data)
    if isinstance(data, dict):
        tensors = {name: v.detach().cpu().double().numpy() for name, v in data.items() if hasattr(v, "detach")}
        data = data | tensors
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
    try:
        return Source([FRAME], dict(frame.collect_schema()), _count(frame), frame)
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"{FRAME} cannot be read: {str(error).splitlines()[0]}") from None


# --- files -----------------------------------------------------------------------------------------------------------


def _files(paths: Iterable[str | Path]) -> list[Source]:
    names = {os.path.realpath(name): name for path in paths for name in _expand(str(path))}
    opened = [_opened(name) for name in names.values()]
    sources = []
    # Parquet files of the same schema are scanned together: thousands of scans are slow to join.
    for (text, _), group in groupby(opened, lambda s: (s.frame is not None, s.stored)):
        members = list(group)
        if text:
            sources += members
        else:
            counts = [n for m in members for n in m.counts or []]
            sources.append(replace(members[0], names=[m.names[0] for m in members], counts=counts))
    return sources


def _expand(path: str) -> list[str]:
    """The files of a path: itself, the rows of a run folder, the tables of another folder, or those of a pattern.

    The output folder of TRL has the rows of an fspo trainer in `fspo`, and its completions in `completions`.
    """
    folder = Path(path)
    if folder.is_dir():
        inside = row_files.files(folder) or row_files.files(folder / "fspo") or _tables(folder)
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


def _tables(folder: Path) -> list[Path]:
    """A trainer's dump, or the tables of one kind: a folder of Parquet files may hold descriptions in JSON too."""
    for pattern in dumps.FILES:
        if dumped := sorted(folder.glob(pattern)):
            return dumped
    for suffix in (*SUFFIXES, *PICKLES):
        if tables := sorted(p for p in folder.iterdir() if _ending(p) == suffix and p.is_file()):
            return tables
    return []


def _ending(path: Path) -> str:
    """The ending that states the format: .csv for rows.csv.gz."""
    kind = path.suffix.lower()
    return Path(path.stem).suffix.lower() if kind in COMPRESSED else kind


def _opened(name: str) -> Source:
    """A file, with the number of its rows if it states it."""
    path = Path(name)
    kind = _ending(path)
    if kind in PICKLES:
        raise ValueError(
            f"{name} is a pickle, as SkyRL writes it: loading one can run any code, so it is not read. Write "
            "action_log_probs (as old_logprobs), rollout_logprobs, loss_mask and advantages as lists to Parquet"
        )
    if kind not in SUFFIXES:
        raise ValueError(f"{name} has an unknown ending: use one of {', '.join(SUFFIXES)}, or .gz or .zst after it")
    if not path.stat().st_size:
        raise ValueError(f"{name} is empty: there is nothing to audit")
    try:
        if kind == ".parquet":
            schema = pl.scan_parquet(path, glob=False).collect_schema()
            dump = dumps.recognised(schema)
            return Source([name], dict(schema), [pq.read_metadata(path).num_rows], trainer=dump.trainer if dump else "")
        if kind == ".pt":
            samples = dumps.slime(path)
            return Source([name], dict(samples.schema), [samples.height], samples, "slime")
        frame = _text(path, kind)
        if dump := dumps.recognised(frame.collect_schema()):
            frame = dump.table(frame.lazy())
        return Source([name], dict(frame.collect_schema()), _count(frame), frame, dump.trainer if dump else "")
    except (pl.exceptions.PolarsError, pa.ArrowException, OSError) as error:
        _unreadable([name], error)


def _text(path: Path, kind: str) -> pl.LazyFrame | pl.DataFrame:
    """A table of text. Types are those of all rows: a column of numbers and words holds words."""
    with _decompressed(path) as file:
        start = file.read(1 << 16)
    if problem := next((text for magic, text in BEGINNINGS.items() if start.startswith(magic)), None):
        raise ValueError(f"{path} {problem}")
    if kind in SEPARATORS:
        separator, header = SEPARATORS[kind], start.partition(b"\n")[0].decode("utf-8", "replace")
        other = next((mark for mark in ";\t|," if mark in header), "")
        if separator not in header and other:
            raise ValueError(
                f"{path} is separated by {other!r} where {separator!r} is needed: write it anew, with decimal points"
            )
        if "\r" in header and b"\n" not in start:
            raise ValueError(f"{path} has the line ends of old Macs: convert it with tr '\\r' '\\n'")
        return pl.scan_csv(path, separator=separator, glob=False, infer_schema_length=None)
    if start.lstrip()[:1] == b"[":
        with _decompressed(path) as file:
            return pl.read_json(file.read(), infer_schema_length=None)
    return pl.scan_ndjson(glob.escape(str(path)), infer_schema_length=None)


def _count(frame: pl.LazyFrame | pl.DataFrame) -> list[int] | None:
    return [frame.height] if isinstance(frame, pl.DataFrame) else None


def _decompressed(path: Path) -> Any:
    return pa.input_stream(str(path), compression=COMPRESSED.get(path.suffix.lower()))


def _unreadable(names: list[str], error: Exception) -> NoReturn:
    """One sentence, with the row if it is a line of JSON that cannot be parsed."""
    kind = _ending(Path(names[0]))
    where = names[0] if len(names) == 1 else f"{names[0]} or one of {len(names) - 1} more"
    bad = _bad_line(Path(names[0])) if kind in (".jsonl", ".ndjson", ".json") else None
    why, encoding = " ".join(str(error).split())[:200], "" if kind == ".parquet" else " in UTF-8"
    raise ValueError(f"{where}{bad or f' cannot be read as {kind[1:]}{encoding}: {why}'}") from None


def _bad_line(path: Path) -> str | None:
    """`, row n ...` of the first line that is no JSON object."""

    def refuse(word: str) -> NoReturn:
        raise ValueError(f"{word} is not JSON, write null")

    try:
        with _decompressed(path) as file:
            lines = (line for line in io.TextIOWrapper(file, "utf-8", "replace") if line.strip())
            for row, line in enumerate(lines, 1):
                try:
                    if not isinstance(json.loads(line, parse_constant=refuse), dict):
                        return f", row {row} is not a JSON object"
                except (ValueError, RecursionError) as error:
                    return f", row {row} cannot be read: {error}"
    except OSError:  # the compression is damaged
        pass
    return None
