"""One pass over the data: exact sums for each length, and a bounded sample for what sums cannot tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fspo.auditing.reader import Reader
from fspo.auditing.roles import assign
from fspo.auditing.sample import Array, Columns, Sample
from fspo.auditing.sources import Source

EXACT = 1 << 16  # lengths below have a cell each; above, cells are 1 / FINE of the length wide
FINE = 4096
FIELDS = ("count", "pulls", "log_ratio", "square", "clipped", "truncated", "scored", "reward")

SAMPLED = ("length", "log_ratio", "accepted", "advantage", "step", "by")


@dataclass
class Cells:
    """Sums over the rows of each length; `pulls` counts, and `clipped` sums, those that have a gradient."""

    sums: NDArray[np.float64] = field(default_factory=lambda: np.zeros((len(FIELDS), 0)))

    def add(self, columns: Columns) -> None:
        index = cell(columns["length"])
        size = int(index.max()) + 1
        if size > self.sums.shape[1]:
            self.sums = np.pad(self.sums, ((0, 0), (0, size - self.sums.shape[1])))
        sums = {"count": np.bincount(index, minlength=size)}
        flat = np.flatnonzero(columns["advantage"] == 0) if "advantage" in columns else np.zeros(0, np.intp)
        sums["pulls"] = sums["count"] - np.bincount(index[flat], minlength=size) if len(flat) else sums["count"]
        if "log_ratio" in columns:
            S = columns["log_ratio"]
            sums |= {"log_ratio": np.bincount(index, S, size), "square": np.bincount(index, S * S, size)}
        if "accepted" in columns:  # few rows are clipped, and fewer truncated: only those are summed
            rows = np.flatnonzero(columns["accepted"] != 1)
            if len(flat):
                rows = rows[columns["advantage"][rows] != 0]
            sums["clipped"] = np.bincount(index[rows], 1 - columns["accepted"][rows].astype(np.float64), size)
        if "truncated" in columns:
            rows = np.flatnonzero(columns["truncated"])
            sums["truncated"] = np.bincount(index[rows], columns["truncated"][rows], size)
        if "reward" in columns:
            sums["reward"] = np.bincount(index, columns["reward"], size)
            sums["scored"] = np.bincount(index, columns["scored"], size) if "scored" in columns else sums["count"]
        for name, values in sums.items():
            self.sums[FIELDS.index(name), :size] += values

    def __add__(self, other: Cells) -> Cells:
        size = max(self.sums.shape[1], other.sums.shape[1])
        padded = [np.pad(c.sums, ((0, 0), (0, size - c.sums.shape[1]))) for c in (self, other)]
        return Cells(padded[0] + padded[1])

    def table(self) -> Columns:
        """The sums of the lengths that occur, and the lengths."""
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


class Pass:
    """What is gathered from all rows."""

    def __init__(self, sources: Sequence[Source], given: dict[str, str], by: str | None) -> None:
        self.roles = assign(sources[0].schema, given, by, sources[0].names[0])
        self.moved, self.still = Cells(), Cells()  # rows whose ratio could be clipped, and on-policy rows
        counts = [n for s in sources for n in (s.counts or [-1])]
        self.sample = Sample(None if -1 in counts else sum(counts))
        self.rows = self.on_policy = self.empty = self.unscored = 0
        self._seen: dict[str, bool] = {}
        for source in sources:
            self._read(source)
        if not self.rows:
            raise ValueError(f"{sources[0].names[0]} has no rows: there is nothing to audit")

    def has(self, role: str) -> bool:
        return self._seen.get(role, False)

    def _read(self, source: Source) -> None:
        for name in self.roles.needed:
            if name not in source.schema:
                raise ValueError(f"{source.names[0]} has no column {name!r}, which other files have")
        roles = assign(source.schema, self.roles.columns, self.roles.by, source.names[0])
        first = 0
        for batch in source.batches(self.roles.needed):
            if batch.height:
                self._add(Reader(batch, roles, source, first))
            first += batch.height
        self.rows += first

    def _add(self, reader: Reader) -> None:
        columns, tokens = reader.columns()
        if "text" in self.roles:
            written = columns["length"] > 0
            self.empty += int((~written).sum())
            columns = {name: values[written] for name, values in columns.items()}
            if not written.any():
                return
        for role in ("log_ratio", "accepted", "advantage", "truncated", "reward", "step"):
            if self._seen.setdefault(role, role in columns) != (role in columns) and role in self.roles:
                reader.fail(np.ones(1, bool), role, "is empty here and filled elsewhere: audit such files apart")
        if "scored" in columns:
            self.unscored += int((~columns["scored"]).sum())
        still = columns["log_ratio"] == 0 if "log_ratio" in columns else None
        if still is not None and still.any():
            if "staleness" in columns:
                still &= columns["staleness"] == 0
            if tokens is not None:
                tokens = tokens[np.repeat(~still, columns["length"].astype(np.intp))]
            self.on_policy += int(still.sum())
            if still.any():
                self.still.add({name: values[still] for name, values in columns.items()})
            columns = {name: values[~still] for name, values in columns.items()}
        if len(columns["length"]):
            self.moved.add(columns)
            self.sample.add({name: columns[name] for name in SAMPLED if name in columns}, tokens)
