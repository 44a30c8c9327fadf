"""Tables of any size as batches of rows: Parquet, JSON lines, JSON, CSV, TSV, folders of them, or frames in memory.

Memory is bounded by the batch or the row group, not by the file. A source maps a row to its file and number there
(from 1, without the header), so that a bad value can be named. An unreadable file is refused in one sentence.
"""

from __future__ import annotations

import glob
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, groupby
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from fspo.audits import dumps
from fspo.fairness.bins import Array
from fspo.files import BadLine, json_objects
from fspo.runs import rows as row_files

Schema = dict[str, pl.DataType]
SEPARATORS = {".csv": ",", ".tsv": "\t"}
SUFFIXES = (".parquet", ".jsonl", ".ndjson", *SEPARATORS, ".json", ".pt")
PICKLES = (".pkl", ".pickle")
COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
FRAME = "the frame"  # the name of data without a path


@dataclass
class Source:
    """Parquet files of one schema, one file of text, or a frame."""

    names: list[str]
    frame: pl.LazyFrame
    trainer: str = ""  # whose dump it is
    counts: list[int] | None = None  # rows per file, where they are known without reading
    schema: Schema = field(init=False)  # arrays of one size are lists

    def __post_init__(self) -> None:
        arrays = [name for name, kind in self.frame.collect_schema().items() if isinstance(kind, pl.Array)]
        self.frame = self.frame.with_columns(pl.col(arrays).arr.to_list()) if arrays else self.frame
        self.schema = dict(self.frame.collect_schema())

    def location(self, row: int) -> str:
        """`file, row n` of a row of this source; `row` is counted from 0 over all files."""
        name = self.names[0]
        if self.counts is not None and len(self.names) > 1:
            ends = list(accumulate(self.counts))
            k = next(i for i, end in enumerate(ends) if row < end)
            name, row = self.names[k], row - ends[k] + self.counts[k]
        return f"{name}, row {row + 1}"

    def batches(self, columns: Sequence[str]) -> Iterator[tuple[pl.DataFrame, Array]]:
        """The rows in order, with these columns, and the number of each in the source."""
        # A response that an update of a run left out, because it has no gradient, has no log-ratio.
        recorded = {"log_ratio", "advantage"} <= set(columns) and all(name in self.schema for name in row_files.NEEDED)
        known, first = None, 0
        if recorded:
            known = pl.col("log_ratio").is_not_null() | row_files.HAS_GRADIENT
        elif "mismatch" in columns:  # unknown for an answer without a forward pass
            known = pl.col("mismatch").is_not_null()
        try:
            for batch in self.frame.select(columns).collect_batches():
                rows = np.arange(first, first + batch.height)
                first += batch.height
                if known is not None:
                    kept = batch.select(known).to_series()
                    batch, rows = batch.filter(kept), rows[kept.to_numpy()]
                if batch.height:
                    yield batch, rows
        except pl.exceptions.PolarsError as error:
            _unreadable(self.names, error)


def open_sources(data: Any) -> list[Source]:
    """What `audit` was given: a frame, a table, columns in a dictionary, a path, or several paths."""
    if isinstance(data, str | Path):
        return _files([data])
    if isinstance(data, Sequence) and data and all(isinstance(part, str | Path) for part in data):
        return _files(data)
    if isinstance(data, dict):
        data = {name: _arrays(values) for name, values in data.items()}
    try:
        if isinstance(data, dict) or hasattr(data, "__arrow_c_stream__"):  # pyarrow, pandas, datasets and others
            data = pl.DataFrame(data)
        if isinstance(data, pl.DataFrame | pl.LazyFrame):
            return [Source([FRAME], data.lazy(), "", _count(data))]
    except (pl.exceptions.PolarsError, pa.ArrowException, TypeError) as error:
        raise ValueError(f"{FRAME} is no table: {str(error).splitlines()[0]}") from None
    raise ValueError(
        f"audit reads a path, several paths, a frame or a dictionary of columns, not {type(data).__name__}"
    )


def _arrays(values: Any) -> Any:
    """Tensors, and tensors in a list, as arrays."""
    if hasattr(values, "detach"):
        return values.detach().cpu().double().numpy()
    if isinstance(values, list) and values and hasattr(values[0], "detach"):
        return [_arrays(row) for row in values]
    return values


def named(data: Any) -> str:
    """The name of the data as it was given: of a folder, not of the files in it."""
    if isinstance(data, str | Path):
        return str(data)
    if isinstance(data, Sequence):
        return f"{data[0]} and {len(data) - 1} more" if len(data) > 1 else str(data[0])
    return FRAME


# --- files -----------------------------------------------------------------------------------------------------------


def _files(paths: Iterable[str | Path]) -> list[Source]:
    """Parquet files of the same schema are scanned together: thousands of scans are slow to join."""
    names = {os.path.realpath(name): name for path in paths for name in _expand(str(path))}
    return [_opened(list(group)) for _, group in groupby(names.values(), _scanned_with)]


def _scanned_with(name: str) -> Any:
    """What neighbouring files must share to be one source."""
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
        return pl.scan_parquet(path, glob=False).collect_schema() if kind == ".parquet" else name
    except (pl.exceptions.PolarsError, OSError) as error:
        _unreadable([name], error)


def _opened(names: list[str]) -> Source:
    """Files with the number of their rows, if they state it; a dump of a trainer in the names of the audit."""
    path = Path(names[0])
    kind = _ending(path)
    try:
        if kind == ".pt":
            samples = dumps.slime(path)
            return Source(names, samples.lazy(), "slime", [samples.height])
        if kind == ".parquet":
            table: pl.LazyFrame | pl.DataFrame = pl.scan_parquet(names, glob=False)
            counts: list[int] | None = [pq.read_metadata(name).num_rows for name in names]
        else:
            table = _text(path, kind)
            counts = _count(table)
        return Source(names, *dumps.recognised(table.lazy()), counts)
    except (pl.exceptions.PolarsError, pa.ArrowException, OSError) as error:
        _unreadable(names, error)


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
    here = sorted(p for p in folder.iterdir() if p.is_file())
    candidates = chain(
        (sorted(folder.glob(pattern)) for pattern in dumps.FILES),
        ([p for p in here if _ending(p) == suffix] for suffix in (*SUFFIXES, *PICKLES)),
        (sorted(folder.glob(f"**/{pattern}")) for pattern in dumps.FILES),
    )
    return next(filter(None, candidates), [])


def _ending(path: Path) -> str:
    """The ending that states the format: .csv for rows.csv.gz."""
    kind = path.suffix.lower()
    return Path(path.stem).suffix.lower() if kind in COMPRESSED else kind


def _text(path: Path, kind: str) -> pl.LazyFrame | pl.DataFrame:
    """A table of text. Types are those of all rows: a column of numbers and words holds words."""
    with io.BufferedReader(_decompressed(path)) as file:
        first, more = file.readline(), file.read(1 << 10)
    if first.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError(f"{path} is UTF-16 text: convert it with iconv -f UTF-16 -t UTF-8")
    if kind in SEPARATORS:
        separator, header = SEPARATORS[kind], first.decode("utf-8", "replace")
        other = next((mark for mark in ";\t|," if mark in header), "")
        if separator not in header and other:
            raise ValueError(
                f"{path} is separated by {other!r} where {separator!r} is needed: export it again with that separator "
                "and decimal points"
            )
        return pl.scan_csv(path, separator=separator, glob=False, infer_schema_length=None)
    if first.startswith(b"\xef\xbb\xbf"):
        raise ValueError(f"{path} begins with a byte order mark: remove its first three bytes, as tail -c +4 does")
    if kind == ".json" and first.lstrip()[:1] == b"{" and not (first.rstrip().endswith(b"}") and more.strip()):
        raise ValueError(f"{path} is one JSON object: give a list of objects, one per answer, or JSON lines")
    if (first + more).lstrip()[:1] == b"[":
        with _decompressed(path) as file:
            return pl.read_json(file.read(), infer_schema_length=None)
    return pl.scan_ndjson(glob.escape(str(path)), infer_schema_length=None)


def _count(table: pl.LazyFrame | pl.DataFrame) -> list[int] | None:
    return [table.height] if isinstance(table, pl.DataFrame) else None


def _decompressed(path: Path) -> Any:
    return pa.input_stream(str(path), compression=COMPRESSED.get(path.suffix.lower()))


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"it holds {name}, write null")


def _unreadable(names: list[str], error: Exception) -> NoReturn:
    kind = _ending(Path(names[0]))
    if kind in (".jsonl", ".ndjson", ".json"):
        with io.TextIOWrapper(_decompressed(Path(names[0])), "utf-8", "replace") as lines:
            bad = next((line for line in json_objects(lines, _no_constant) if isinstance(line, BadLine)), None)
        if bad is not None and (kind != ".json" or bad.number > 1):
            raise ValueError(f"line {bad.number} of {names[0]} {bad.problem}: fix it, or remove it") from None
    where = names[0] if len(names) == 1 else f"{names[0]} or one of {len(names) - 1} more"
    why = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    encoding = "" if kind == ".parquet" else " in UTF-8"
    raise ValueError(f"{where} cannot be read as {kind[1:]}{encoding}: {why}") from None
