"""One pass over the data: exact sums per length, and a bounded sample for what sums cannot tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fspo import ratios
from fspo.audits.columns import LONGEST, OPTIONAL, Array, BatchReader, Columns, Roles, assign
from fspo.audits.sources import Source

FIELDS = ("count", "with_gradient", "log_ratio", "square", "clipped", "truncated", "scored", "reward")

SAMPLED = ("length", "log_ratio", "accepted", "advantage", "by", "part")
ROWS, TOKENS = 1 << 17, 1 << 22  # of the sample


class LengthSums:
    """Sums over the rows of each length; `clipped` is summed over the rows that have a gradient."""

    def __init__(self) -> None:
        self.sums = np.zeros((len(FIELDS), LONGEST + 1))

    def add(self, columns: Columns) -> None:
        index = columns["length"]
        size = int(index.max()) + 1
        sums = {"count": np.bincount(index, minlength=size)}
        # Most rows have a gradient, few are clipped, and fewer truncated: only the exceptions are summed.
        without = np.zeros(0, np.intp)
        if "advantage" in columns:
            without = np.flatnonzero(~ratios.has_gradient(columns["advantage"]))
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

    @property
    def rows(self) -> int:
        return int(self.sums[FIELDS.index("count")].sum())

    def table(self, without: LengthSums | None = None) -> Columns:
        """The lengths that occur, and their sums; without those of a part of the rows."""
        used = np.flatnonzero(self.sums[FIELDS.index("count")])
        sums = self.sums[:, used] - (0.0 if without is None else without.sums[:, used])
        left = sums[FIELDS.index("count")] > 0
        return {"length": used[left].astype(np.float64), **dict(zip(FIELDS, sums[:, left], strict=True))}


def on_policy(columns: Columns) -> Array:
    """The rows on which clipping cannot act: as the column `off_policy` has it, or else those where S is 0.

    S of a policy that has not moved is 0 up to rounding: |S| <= ROUNDING sqrt(L), see `fspo.ratios`.
    """
    if "off_policy" in columns:
        return ~columns["off_policy"].astype(bool)
    return np.asarray(np.abs(columns["log_ratio"]) <= ratios.ROUNDING * np.sqrt(columns["length"]))


class RowSample:
    """One random row of each `stride` rows; the stride doubles when the sample grows too large.

    The token log-ratios of the sampled rows, if there are any, lie in one flat array, in the order of the rows.
    """

    def __init__(self, expected: int | None, rows: int = ROWS, tokens: int = TOKENS) -> None:
        self.stride = 1 if expected is None else max(1, -(-expected // rows))
        self._most = (rows, tokens)
        self._rng = np.random.default_rng(0)
        self._parts: list[Columns] = []
        self._tokens: list[Array] = []

    def add(self, columns: Columns, tokens: Array | None = None, rows: Array | None = None) -> None:
        """Sample from a batch, or from these rows of it."""
        self._keep(columns, tokens, rows, self.stride)
        while sum(len(p["length"]) for p in self._parts) > self._most[0] or (
            sum(len(t) for t in self._tokens) > self._most[1]
        ):
            self.stride *= 2
            columns, tokens = self.result()
            self._parts, self._tokens = [], []
            self._keep(columns, tokens, None, 2)

    def _keep(self, columns: Columns, tokens: Array | None, rows: Array | None, stride: int) -> None:
        """One row of each block of `stride` rows."""
        if stride > 1:
            n = len(columns["length"]) if rows is None else len(rows)
            blocks = np.arange(0, n, stride)
            chosen = blocks + self._rng.integers(stride, size=len(blocks))
            chosen = chosen[chosen < n]
            rows = chosen if rows is None else rows[chosen]
        if rows is not None:
            columns, tokens = _take(columns, tokens, rows)
        if len(columns["length"]):
            self._parts.append(columns)
            self._tokens += [] if tokens is None else [tokens]

    def result(self) -> tuple[Columns, Array | None]:
        """The columns that all batches have, and the tokens."""
        if not self._parts:
            return {}, None
        shared = [name for name in self._parts[0] if all(name in part for part in self._parts)]
        columns = {name: np.concatenate([part[name] for part in self._parts]) for name in shared}
        return columns, np.concatenate(self._tokens) if self._tokens else None


def _take(columns: Columns, tokens: Array | None, chosen: Array) -> tuple[Columns, Array | None]:
    """These rows, with their tokens."""
    if tokens is not None:
        L = columns["length"]
        lengths, starts = L[chosen], (np.cumsum(L) - L)[chosen]
        shift = starts - (np.cumsum(lengths) - lengths)
        tokens = tokens[np.repeat(shift, lengths) + np.arange(int(lengths.sum()))]
    return {name: values[chosen] for name, values in columns.items()}, tokens


class Pass:
    """What is gathered from all rows."""

    def __init__(self, sources: Sequence[Source], given: dict[str, str], by: str | None, mismatch: bool) -> None:
        self.notes: list[str] = [f"Read as a dump of {t}." for t in dict.fromkeys(s.trainer for s in sources) if t]
        by_file = self._assigned(sources, given, by, mismatch)
        self.roles = by_file[0]
        self.rewards = [name for name in sources[0].schema if "reward" in name.lower()]  # that may be rewards
        self.all, self.on_policy = LengthSums(), LengthSums()
        counts = [n for s in sources for n in (s.counts or [-1])]
        self.sample = RowSample(None if -1 in counts else sum(counts))  # of the off-policy rows
        self.rows = 0
        self.empty = 0  # answers without a character
        self._seen: dict[str, bool] = {}
        for source, roles in zip(sources, by_file, strict=True):
            self._read(source, roles)
        if self.empty == self.rows:
            lack = "only empty answers" if self.rows else "no rows"
            raise ValueError(f"{sources[0].names[0]} has {lack}: there is nothing to audit")

    def has(self, role: str) -> bool:
        """Whether the data has values of this role."""
        return self._seen.get(role, False)

    def _assigned(
        self, sources: Sequence[Source], given: dict[str, str], by: str | None, mismatch: bool
    ) -> list[Roles]:
        """The roles of each file's columns. Columns missing from some files must be optional: they are left out."""
        by_file = [assign(source.schema, given, by, mismatch, source.names[0]) for source in sources]
        if not by_file[0].has_length:
            raise ValueError(
                f"{sources[0].names[0]} has no length of the answers: give --length COLUMN; its columns: "
                f"{', '.join(sources[0].schema)}. Lists of log-probs (--logprobs, --old-logprobs) have a length too"
            )
        every = {role for roles in by_file for role in roles.columns}
        shared = {role for role in every if all(role in roles for roles in by_file)}
        for source, roles in zip(sources, by_file, strict=True):
            lacking = every - roles.columns.keys() - set(OPTIONAL)
            if lacking or (roles.tokens, roles.mismatch) != (by_file[0].tokens, by_file[0].mismatch):
                what = f"no {lacking.pop()}" if lacking else "log-ratios in another form"
                raise ValueError(f"{source.names[0]} has {what}, unlike other files: audit them apart")
        if shared < every:
            self.notes.append(f"Left out, since some files lack it: {', '.join(sorted(every - shared))}.")
        return [replace(r, columns={role: r.columns[role] for role in shared}) for r in by_file]

    def _read(self, source: Source, roles: Roles) -> None:
        first = 0
        for batch in source.batches(roles.needed):
            self._add(BatchReader(batch, roles, source, first))
            first += batch.height
        self.rows += first

    def _add(self, reader: BatchReader) -> None:
        columns, tokens = reader.columns()
        if "text" in self.roles:
            written = columns["length"] > 0
            self.empty += int((~written).sum())
            columns = {name: values[written] for name, values in columns.items()}
            if not written.any():
                return
        for role in ("log_ratio", "accepted", "advantage", "truncated"):
            if self._seen.setdefault(role, role in columns) != (role in columns):
                reader.fail(np.ones(1, bool), role, "is empty here and filled elsewhere: audit such files apart")
        self.all.add(columns)
        moved = None
        if "log_ratio" in columns and not self.roles.mismatch and (still := on_policy(columns)).any():
            self.on_policy.add({name: values[still] for name, values in columns.items()})
            moved = np.flatnonzero(~still)
        self.sample.add({name: columns[name] for name in SAMPLED if name in columns}, tokens, moved)
