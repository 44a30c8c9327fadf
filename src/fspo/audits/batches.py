"""A batch of rows as checked arrays; the first bad value stops the audit with its file, row and column."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import polars as pl

from fspo.audits.roles import Roles
from fspo.audits.sample import Array, Columns
from fspo.audits.sources import Source

TOO_LARGE = 1e100  # no trainer writes numbers of this size, and their squares would overflow
LIMITS = {"length": (1, 1 << 53), "accepted": (0, 1), "truncated": (0, 1), "off_policy": (0, 1)}
WANTED = {
    "length": " where a positive whole number is needed",
    "accepted": " where a share between 0 and 1 is needed",
    "truncated": " where true or false is needed",
    "off_policy": " where true or false is needed",
}


class BatchReader:
    """One batch. A column that is empty throughout counts as missing; only rewards may be empty in some rows."""

    def __init__(self, batch: pl.DataFrame, roles: Roles, source: Source, first: int) -> None:
        self.batch, self.roles, self.source, self.first = batch, roles, source, first

    def fail(self, bad: Array, role: str, sentence: str) -> NoReturn:
        name = self.roles.by if role == "by" else self.roles.columns[role]
        raise ValueError(f"{self.source.place(self.first + int(np.argmax(bad)))}, column {name!r} {sentence}")

    def columns(self) -> tuple[Columns, Array | None]:
        """The columns by role, and the token log-ratios in one flat array if the file has them.

        An empty answer, which is possible where the length is that of a text, has the length 0.
        """
        columns, tokens = {"length": self._length()}, None
        if self.roles.tokens:
            tokens, columns["log_ratio"] = self._token_ratios(columns["length"])
        elif "log_ratio" in self.roles:
            columns |= self._some("log_ratio")
        elif "logprobs" in self.roles:
            pair = self._some("logprobs") | self._some("old_logprobs")
            if len(pair) == 2:
                columns["log_ratio"] = pair["logprobs"].astype(np.float64) - pair["old_logprobs"]
        for role in ("accepted", "advantage", "truncated", "step", "off_policy"):
            columns |= self._some(role)
        columns |= self._rewards()
        if self.roles.by is not None:
            columns["by"] = self._by(self.batch[self.roles.by])
        return columns, tokens

    def _series(self, role: str) -> pl.Series:
        return self.batch[self.roles.columns[role]]

    def _some(self, role: str) -> Columns:
        """The column of a role, if there is one with values."""
        if role not in self.roles or self._series(role).null_count() == self.batch.height:
            return {}
        return {role: self._numbers(role)}

    def _numbers(self, role: str) -> Array:
        values = self._filled(role)
        numbers = values.to_numpy()
        if (numbers.dtype.kind != "f" and role not in LIMITS) or numbers.dtype == bool:
            return numbers
        low, high = LIMITS.get(role, (-TOO_LARGE, TOO_LARGE))
        if not (float(numbers.min()) >= low and float(numbers.max()) <= high):  # also where NaN
            wide = numbers.astype(np.float64)
            bad = ~((wide >= low) & (wide <= high))
            self.fail(bad, role, f"is {wide[bad][0]:g}{WANTED.get(role, '')}")
        return numbers

    def _filled(self, role: str) -> pl.Series:
        values = self._series(role)
        if values.null_count():
            self.fail(values.is_null().to_numpy(), role, "is empty")
        return values

    # --- lengths and log-ratios -------------------------------------------------------------------------------------

    def _length(self) -> Array:
        if "text" in self.roles:
            return self._series("text").str.len_chars().fill_null(0).to_numpy()
        if self.roles.tokens:
            return self._list_lengths()
        L = self._numbers("length")
        if L.dtype.kind == "f":
            fraction = np.floor(L) != L
            if fraction.any():
                self.fail(fraction, "length", f"is {L[fraction][0]:g}{WANTED['length']}")
        return L

    def _list_lengths(self) -> Array:
        role = "log_ratio" if "log_ratio" in self.roles else "logprobs"
        L = self._list(role).list.len().to_numpy()
        if L.min() < 1:
            self.fail(L < 1, role, "is a list without numbers: leave such answers out")
        if role == "logprobs":
            other = self._list("old_logprobs").list.len().to_numpy()
            self._same(other, L, "old_logprobs", "holds {0} numbers where the other log-probs are {1}")
        if "length" in self.roles:
            said = self._numbers("length")
            self._same(said, L, role, "holds {1} numbers where the length is {0:g}: leave padding out")
        return L

    def _same(self, one: Array, other: Array, role: str, sentence: str) -> None:
        differ = one != other
        if differ.any():
            at = int(np.argmax(differ))
            self.fail(differ, role, sentence.format(one[at], other[at]))

    def _list(self, role: str) -> pl.Series:
        values = self._filled(role)
        if not isinstance(values.dtype, pl.List):
            self.fail(
                np.ones(1, bool), role, "is one number per answer where its pair is a list: give both in the same form"
            )
        return values

    def _token_ratios(self, L: Array) -> tuple[Array, Array]:
        """Token log-ratios in one flat array, and their sums."""
        if "log_ratio" in self.roles:
            flat = self._flat("log_ratio", L)
        else:
            flat = self._flat("logprobs", L) - self._flat("old_logprobs", L)
        return flat, np.add.reduceat(flat, np.cumsum(L, dtype=np.intp) - L)

    def _flat(self, role: str, L: Array) -> Array:
        values = self._list(role).explode().cast(pl.Float64).to_numpy()  # a null becomes NaN
        if not np.abs(values).max() <= TOO_LARGE:
            token = int(np.argmax(~(np.abs(values) <= TOO_LARGE)))
            row = int(np.searchsorted(np.cumsum(L), token, side="right"))
            self.fail(np.arange(len(L)) == row, role, "holds an empty, NaN or infinite value")
        return values

    # --- rewards and attributes -------------------------------------------------------------------------------------

    def _rewards(self) -> Columns:
        """Rewards, and which rows have one if some have none: an answer that could not be scored."""
        if "reward" not in self.roles or self._series("reward").null_count() == self.batch.height:
            return {}
        rewards = self._series("reward").cast(pl.Float64).to_numpy()
        if np.isfinite(rewards.sum()):
            return {"reward": rewards}
        if np.isinf(rewards).any():
            self.fail(np.isinf(rewards), "reward", "is infinite")
        scored = ~np.isnan(rewards)
        return {"reward": np.where(scored, rewards, 0.0), "scored": scored}

    def _by(self, values: pl.Series) -> Array:
        if not values.dtype.is_numeric():
            return values.cast(pl.String).fill_null("(none)").to_numpy().astype(object)
        bad = (values.is_null() | ~values.is_finite()).to_numpy()
        if bad.any():
            self.fail(bad, "by", "is empty, NaN or infinite")
        return values.to_numpy()
