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
from fspo.audits.reading.batches import NO_VALUE, BatchReader
from fspo.audits.reading.column_roles import LISTS, Roles, assign, check_given
from fspo.audits.reading.sample import Array, Columns, RowSample
from fspo.audits.reading.sources import Source, UntidyFileError, UnusableFileError, open_sources

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
            S = np.asarray(columns["log_ratio"], np.float64)
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
        self.notes: list[str] = []
        self.by_file = _roles(sources, given, by)
        self.roles = _merged(self.by_file)  # of all files: each role with its column in the first file that has it
        for source, roles in zip(sources, self.by_file, strict=True):
            for role in ("truncated", "step"):
                if role in self.roles and role not in roles:
                    name = self.roles.columns.pop(role)
                    self.notes.append(f"{source.names[0]} has no column {name!r}, so it is left out of the audit.")
            for why in roles.unfit.values():
                self.notes.append(f"{source.names[0]}, {why}: it is left out of the audit.")
        self.tokens = all(roles.tokens for roles in self.by_file)
        if not self.tokens and any(roles.tokens for roles in self.by_file):
            self.notes.append("Some files have no lists of log-ratios: methods that clip tokens are not compared.")
        # A column of numbers in one file and words in another holds words.
        kinds = [source.schema[roles.by] for source, roles in zip(sources, self.by_file, strict=True) if roles.by]
        self.by_words = not all(kind.is_numeric() for kind in kinds)
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
        for source, roles in zip(sources, self.by_file, strict=True):
            self._read(source, replace(roles, columns={k: v for k, v in roles.columns.items() if self._used(k)}))

    def _used(self, role: str) -> bool:
        return role in self.roles or role in LISTS  # a file may have log-probs where another has log-ratios

    def _read(self, source: Source, roles: Roles) -> None:
        first = 0
        for batch in source.batches(roles.needed):
            if batch.height:
                self._add(BatchReader(batch, roles, source, first))
            first += batch.height
        self.rows += first

    def _add(self, reader: BatchReader) -> None:
        columns, tokens = reader.columns()
        size = len(columns["length"])
        if "advantage" in self.roles and "advantage" not in columns:
            columns["advantage"], reader.no_advantage = np.zeros(size), size
        if "part" in self.roles and "part" not in columns:
            columns["part"] = np.full(size, NO_VALUE, object)
        if "by" in columns and self.by_words:
            columns["by"] = columns["by"].astype(str).astype(object)
        self.averaged += reader.averaged
        self.no_advantage += reader.no_advantage
        if "text" in self.roles:
            written = columns["length"] > 0
            self.empty += int((~written).sum())
            columns = {name: values[written] for name, values in columns.items()}
            if not written.any():
                return
        for role in ("log_ratio", "accepted", "advantage", "truncated", "step"):
            if self._seen.setdefault(role, role in columns) != (role in columns):
                reader.fail(np.ones(1, bool), role, "is empty here and filled elsewhere: audit such files apart")
        if "scored" in columns or "reward" not in columns:
            self.unscored += int((~columns["scored"]).sum()) if "scored" in columns else len(columns["length"])
        self.all.add(columns)
        moved = None
        if "log_ratio" in columns and (still := on_policy(columns)).any():
            self.on_policy.add({name: values[still] for name, values in columns.items()})
            moved = np.flatnonzero(~still)
        kept = {name: columns[name] for name in SAMPLED if name in columns}
        self.sample.add(kept, tokens if self.tokens else None, moved)


def _roles(sources: Sequence[Source], given: dict[str, str], by: str | None) -> list[Roles]:
    """The roles of each file's columns. What only some files have must be such that the others can be audited too."""
    union = {name: kind for source in sources for name, kind in source.schema.items()}
    check_given(union, given, by, sources[0].names[0])
    found = [assign(source.schema, given, by, source.names[0]) for source in sources]
    if not any(roles.has_length for roles in found):
        raise ValueError(_no_length(sources[0], found[0]))
    texts = "text" in found[0].columns and all("text" in roles for roles in found)
    for source, roles in zip(sources, found, strict=True):
        where = source.names[0]
        if not roles.has_length or ("text" in roles and not texts):
            raise ValueError(f"{where} has no column {_first(found, 'length')!r}, which other files have")
        if any(r.has_ratio for r in found) and not roles.has_ratio:
            raise ValueError(f"{where} has no column {_first(found, *LISTS)!r}, which other files have")
        if roles.by is not None and (source.schema[roles.by].is_nested() or source.schema[roles.by] == pl.Object):
            raise ValueError(f"{where}, column {roles.by!r} holds lists or objects: --by needs words or numbers")
        if "accepted" not in roles and any("accepted" in r for r in found):
            raise ValueError(f"{where} has no column {_first(found, 'accepted')!r}, which other files have")
    return found


def _first(found: Sequence[Roles], *wanted: str) -> str:
    """The column of the first of these roles that a file has."""
    return next((r.columns[role] for role in wanted for r in found if role in r), wanted[0])


def _no_length(source: Source, roles: Roles) -> str:
    why = "".join(f". The {sentence}" for sentence in roles.unfit.values())
    return (
        f"{source.names[0]} has no length of the answers: give --length COLUMN; its columns: "
        f"{', '.join(source.schema)}{why}. Lists of log-probs (--logprobs, --old-logprobs) have a length too"
    )


def _merged(found: Sequence[Roles]) -> Roles:
    columns: dict[str, str] = {}
    for roles in found:
        columns = roles.columns | columns
    return Roles(columns, any(r.tokens for r in found), found[0].by)


def gathered_from(data: Any, columns: dict[str, str], by: str | None) -> tuple[Pass, list[str]]:
    """What one pass over the files finds, and their names. Of several files, unusable ones are named and left out."""
    unusable: dict[str, UnusableFileError] = {}
    untidy: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="fspo-audit-") as scratch:
        while True:
            try:
                sources = open_sources(data, Path(scratch), unusable, untidy)
                gathered = Pass(sources, columns, by)
                break
            except UntidyFileError as error:
                untidy.add(error.name)
            except UnusableFileError as error:
                if error.name in unusable:  # none is left
                    raise
                unusable[error.name] = error
    gathered.notes += [f"{error}. It was left out." for error in unusable.values()]
    return gathered, [name for source in sources for name in source.names]
