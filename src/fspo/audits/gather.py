"""One pass over the data: exact sums per length, and a bounded sample for what sums cannot tell."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fspo import ratios
from fspo.audits.batches import BatchReader
from fspo.audits.column_roles import OPTIONAL, assign
from fspo.audits.sample import Array, Columns, RowSample
from fspo.audits.sources import Source, UnreadableFileError, open_sources

EXACT = 1 << 16  # each length below has a cell of its own; cells above are 1 / FINE of the length wide
FINE = 4096
FIELDS = ("count", "with_gradient", "log_ratio", "square", "clipped", "truncated", "scored", "reward")

SAMPLED = ("length", "log_ratio", "accepted", "advantage", "step", "by", "part")


@dataclass
class Cells:
    """Sums over the rows of each length; `clipped` is summed over the rows that have a gradient."""

    sums: NDArray[np.float64] = field(default_factory=lambda: np.zeros((len(FIELDS), 0)))

    def add(self, columns: Columns) -> None:
        index = cell(columns["length"])
        size = int(index.max()) + 1
        if size > self.sums.shape[1]:
            self.sums = np.pad(self.sums, ((0, 0), (0, size - self.sums.shape[1])))
        sums = {"count": np.bincount(index, minlength=size)}
        # Most rows have a gradient, few are clipped, and fewer truncated: only the exceptions are summed.
        without = np.zeros(0, np.intp)
        if "advantage" in columns:
            without = np.flatnonzero(~ratios.has_gradient(columns["advantage"]))
        sums["with_gradient"] = sums["count"]
        if len(without):
            sums["with_gradient"] = sums["count"] - np.bincount(index[without], minlength=size)
        if "log_ratio" in columns:
            S = columns["log_ratio"]
            sums |= {"log_ratio": np.bincount(index, S, size), "square": np.bincount(index, S * S, size)}
        if "accepted" in columns:
            rows = np.flatnonzero(columns["accepted"] != 1)
            if len(without):
                rows = rows[ratios.has_gradient(columns["advantage"][rows])]
            sums["clipped"] = np.bincount(index[rows], 1 - columns["accepted"][rows].astype(np.float64), size)
        if "truncated" in columns:
            rows = np.flatnonzero(columns["truncated"])
            sums["truncated"] = np.bincount(index[rows], columns["truncated"][rows], size)
        if "reward" in columns:
            sums["reward"] = np.bincount(index, columns["reward"], size)
            sums["scored"] = np.bincount(index, columns["scored"], size) if "scored" in columns else sums["count"]
        for name, values in sums.items():
            self.sums[FIELDS.index(name), :size] += values

    def __sub__(self, part: Cells) -> Cells:
        """The sums without those of a part of the rows."""
        return Cells(self.sums - np.pad(part.sums, ((0, 0), (0, self.sums.shape[1] - part.sums.shape[1]))))

    @property
    def rows(self) -> int:
        return int(self.sums[FIELDS.index("count")].sum())

    def table(self) -> Columns:
        """The lengths that occur, and their sums."""
        used = np.flatnonzero(self.sums[0]) if self.sums.size else np.zeros(0, np.intp)
        above = np.exp((np.maximum(used - EXACT, 0) + 0.5) / FINE) * EXACT
        table = dict(zip(FIELDS, self.sums[:, used], strict=True))
        return {"length": np.where(used < EXACT, used, above).astype(np.float64), **table}


def cell(lengths: Array) -> Array:
    """The cell of each length."""
    if lengths.max() < EXACT:
        return lengths.astype(np.intp)
    above = (np.log(np.maximum(lengths, EXACT) / EXACT) * FINE).astype(np.intp) + EXACT
    return np.where(lengths < EXACT, lengths, above).astype(np.intp)


def on_policy(columns: Columns) -> Array:
    """The rows on which clipping cannot act: as the column `off_policy` has it, or else those where S is 0.

    S of a policy that has not moved is 0 up to rounding: |S| <= ROUNDING sqrt(L), see `fspo.ratios`.
    """
    if "off_policy" in columns:
        return ~columns["off_policy"].astype(bool)
    return np.asarray(np.abs(columns["log_ratio"]) <= ratios.ROUNDING * np.sqrt(columns["length"]))


class Pass:
    """What is gathered from all rows."""

    rows: int
    empty: int  # answers without a character
    unscored: int  # answers without a reward, where others have one
    averaged: int  # answers whose advantages differ between tokens
    no_advantage: int  # rows without an advantage, where others have one

    def __init__(self, sources: Sequence[Source], given: dict[str, str], by: str | None) -> None:
        schema = _union(sources)
        self.roles = assign(schema, given, by, sources[0].names[0])
        self.notes: list[str] = []
        for role in ("truncated", "step"):
            name = self.roles.columns.get(role)
            if name is not None and (lacks := [s for s in sources if name not in s.schema]):
                self.notes.append(f"{lacks[0].names[0]} has no column {name!r}, so it is left out of the audit.")
                del self.roles.columns[role]
        self._gather(sources)
        if "advantage" in self.roles and self.no_advantage == self.rows:  # a column without a single value
            del self.roles.columns["advantage"]
            self._gather(sources)
        if self.empty == self.rows:
            lack = "only empty answers" if self.rows else "no rows"
            raise ValueError(f"{sources[0].names[0]} has {lack}: there is nothing to audit")
        if self.unscored + self.empty == self.rows:  # there are no rewards
            self.unscored = 0
        if self.averaged:
            self.notes.append(
                f"{self.averaged:,} answers have advantages that differ between tokens: their mean over the trained "
                "tokens is used."
            )
        if self.no_advantage:
            self.notes.append(f"{self.no_advantage:,} rows have no advantage: they are left out of clip rates.")

    @property
    def off_policy(self) -> Cells:
        """The rows that are not on-policy; without log-ratios, all rows."""
        return self.all - self.on_policy

    def has(self, role: str) -> bool:
        """Whether the data has values of this role."""
        return self._seen.get(role, False)

    def _gather(self, sources: Sequence[Source]) -> None:
        self.all, self.on_policy = Cells(), Cells()
        counts = [n for s in sources for n in (s.counts or [-1])]
        self.sample = RowSample(None if -1 in counts else sum(counts))  # of the off-policy rows
        self.rows = self.empty = self.unscored = self.averaged = self.no_advantage = 0
        self._seen: dict[str, bool] = {}
        for source in sources:
            self._read(source)

    def _read(self, source: Source) -> None:
        for role, name in self.roles.columns.items():
            if name not in source.schema and role not in OPTIONAL:
                raise ValueError(f"{source.names[0]} has no column {name!r}, which other files have")
        lacking = {name: pl.Null() for name in self.roles.needed if name != self.roles.by}
        roles = assign(lacking | source.schema, self.roles.columns, self.roles.by, source.names[0])
        roles = replace(roles, columns={role: name for role, name in roles.columns.items() if role in self.roles})
        first = 0
        for batch in source.batches(self.roles.needed):
            if batch.height:
                self._add(BatchReader(batch, roles, source, first))
            first += batch.height
        self.rows += first

    def _add(self, reader: BatchReader) -> None:
        columns, tokens = reader.columns()
        self.averaged += reader.averaged
        self.no_advantage += reader.no_advantage
        if "text" in self.roles:
            written = columns["length"] > 0
            self.empty += int((~written).sum())
            columns = {name: values[written] for name, values in columns.items()}
            if not written.any():
                return
        for role in ("log_ratio", "accepted", "advantage", "truncated", "step"):
            if self._seen.setdefault(role, role in columns) != (role in columns) and role in self.roles:
                reader.fail(np.ones(1, bool), role, "is empty here and filled elsewhere: audit such files apart")
        if "scored" in columns or "reward" not in columns:
            self.unscored += int((~columns["scored"]).sum()) if "scored" in columns else len(columns["length"])
        self.all.add(columns)
        moved = None
        if "log_ratio" in columns and (still := on_policy(columns)).any():
            self.on_policy.add({name: values[still] for name, values in columns.items()})
            moved = np.flatnonzero(~still)
        self.sample.add({name: columns[name] for name in SAMPLED if name in columns}, tokens, moved)


def _union(sources: Sequence[Source]) -> dict[str, pl.DataType]:
    """The columns of all files; one that differs in case only is that of the first file."""
    schema: dict[str, pl.DataType] = {}
    for source in sources:
        for name, kind in source.schema.items():
            if schema.get(name, pl.Null()) == pl.Null():
                schema[name] = kind
    return schema


def gathered_from(data: Any, columns: dict[str, str], by: str | None) -> tuple[Pass, list[str]]:
    """What one pass over the files finds, and their names. Of several files, damaged ones are named and left out."""
    damaged: dict[str, UnreadableFileError] = {}
    with tempfile.TemporaryDirectory(prefix="fspo-audit-") as scratch:
        while True:
            try:
                sources = open_sources(data, Path(scratch), damaged)
                gathered = Pass(sources, columns, by)
                break
            except UnreadableFileError as error:
                if error.name in damaged:  # none is left
                    raise
                damaged[error.name] = error
    gathered.notes += [f"{error}. It was left out." for error in damaged.values()]
    return gathered, [name for source in sources for name in source.names]
