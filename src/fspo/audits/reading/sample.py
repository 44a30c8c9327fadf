"""A uniform random sample of bounded size from a stream of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

ROWS = 1 << 17
TOKENS = 1 << 22

Array = NDArray[Any]
Columns = dict[str, Array]


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
        chosen = self._draw(len(columns["length"]) if rows is None else len(rows), self.stride)
        if rows is not None:
            chosen = rows if chosen is None else rows[chosen]
        if chosen is not None and not len(chosen):
            return
        kept, tokens = _take(columns, tokens, chosen)
        self._parts.append(kept)
        if tokens is not None:
            self._tokens.append(tokens)
        while sum(len(p["length"]) for p in self._parts) > self._most[0] or self._token_count() > self._most[1]:
            self.stride *= 2
            kept, tokens = self.result()
            kept, tokens = _take(kept, tokens, self._draw(len(kept["length"]), 2))
            self._parts, self._tokens = [kept], [] if tokens is None else [tokens]

    def result(self) -> tuple[Columns, Array | None]:
        """The columns that all batches have, and the tokens."""
        if not self._parts:
            return {}, None
        shared = [name for name in self._parts[0] if all(name in part for part in self._parts)]
        columns = {name: np.concatenate([part[name] for part in self._parts]) for name in shared}
        return columns, np.concatenate(self._tokens) if self._tokens else None

    def _token_count(self) -> int:
        return sum(len(t) for t in self._tokens)

    def _draw(self, n: int, stride: int) -> Array | None:
        """One row of each block of `stride` rows; None stands for all rows."""
        if stride == 1:
            return None
        blocks = np.arange(0, n, stride)
        chosen = blocks + self._rng.integers(stride, size=len(blocks))
        return chosen[chosen < n]


def _take(columns: Columns, tokens: Array | None, chosen: Array | None) -> tuple[Columns, Array | None]:
    if chosen is None:
        return columns, tokens
    if tokens is not None:
        L = columns["length"].astype(np.intp)
        lengths, starts = L[chosen], (np.cumsum(L) - L)[chosen]
        shift = starts - (np.cumsum(lengths) - lengths)
        tokens = tokens[np.repeat(shift, lengths) + np.arange(int(lengths.sum()))]
    return {name: values[chosen] for name, values in columns.items()}, tokens
