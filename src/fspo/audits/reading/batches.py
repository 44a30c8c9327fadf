"""A batch of rows as checked arrays; the first bad value stops the audit with its file, row and column."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import polars as pl

from fspo.audits.reading import padding
from fspo.audits.reading.column_roles import PAIR, Roles, is_chat
from fspo.audits.reading.sample import Array, Columns
from fspo.audits.reading.sources import Source

TOO_LARGE = 1e100  # no trainer writes numbers of this size, and their squares would overflow
LIMITS = {"length": (1, 1 << 53), "accepted": (0, 1), "truncated": (0, 1), "off_policy": (0, 1)}
FINITE = "where a finite number is needed: leave such rows out"
WANTED = {
    "length": "where a positive whole number is needed: leave such rows out",
    "accepted": "where a share between 0 and 1 is needed",
    "truncated": "where true or false is needed",
    "off_policy": "where true or false is needed",
    "advantage": "where a finite number is needed: leave it empty if there is none",
    "reward": "where a finite number is needed: leave it empty if there is none",
}
NO_VALUE = "(none)"  # of a column of categories

FLAGS = ("accepted", "truncated", "off_policy")
WORDS = dict.fromkeys(("true", "yes", "y", "t"), "1") | dict.fromkeys(("false", "no", "n", "f"), "0")


class BatchReader:
    """One batch. A column that is empty throughout counts as missing; some rewards and advantages may be empty."""

    def __init__(self, batch: pl.DataFrame, roles: Roles, source: Source, first: int) -> None:
        self.batch, self.roles, self.source, self.first = batch, roles, source, first
        self.averaged = 0  # rows whose advantages differ between tokens
        self.no_advantage = 0  # rows without one, where others have one

    def fail(self, bad: Array, role: str, sentence: str) -> NoReturn:
        name = self.roles.by if role == "by" else self.roles.columns.get(role, role)
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
        for role in ("accepted", "truncated", "step", "off_policy"):
            columns |= self._some(role)
        if "advantage" in self.roles:
            columns["advantage"] = self._advantages(columns["length"])
        columns |= self._rewards()
        if "part" in self.roles:
            columns["part"] = self._series("part").cast(pl.String).fill_null(NO_VALUE).to_numpy().astype(object)
        if self.roles.by is not None:
            columns["by"] = self._by(self.batch[self.roles.by])
        return columns, tokens

    def _series(self, role: str) -> pl.Series:
        """The column of a role; numbers given as text are numbers, and so are true, yes, false and no."""
        values = self.batch[self.roles.columns[role]]
        if role in ("text", "part"):
            return values
        if values.dtype in (pl.Categorical, pl.Enum):
            values = values.cast(pl.String)
        if values.dtype != pl.String:
            # Neither arithmetic in small types, which overflows, nor types that numpy lacks.
            exact = (
                role in (*LIMITS, "step") and values.dtype.is_integer() and values.dtype not in (pl.Int128, pl.UInt128)
            )
            plain = exact or not values.dtype.is_numeric() or values.dtype in (pl.Float32, pl.Float64)
            return values if plain else values.cast(pl.Float64)
        words = values.str.strip_chars().str.to_lowercase()
        words = words.replace(WORDS) if role in FLAGS else words
        numbers = words.cast(pl.Float64, strict=False)
        bad = (numbers.is_null() & values.is_not_null() & (words != "")).to_numpy()
        if bad.any() and not (role in ("reward", "step") and bad.all()):  # words alone, such as grades, are no numbers
            needed = "true or false" if role in FLAGS else "a number"
            self.fail(bad, role, f"is {values[int(np.argmax(bad))]!r:.40} where {needed} is needed")
        return numbers

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
            self.fail(bad, role, f"is {wide[bad][0]:g} {WANTED.get(role, FINITE)}")
        return numbers

    def _filled(self, role: str) -> pl.Series:
        values = self._series(role)
        if values.null_count():
            self.fail(values.is_null().to_numpy(), role, "is empty: fill it, or leave such rows out")
        return values

    # --- lengths and log-ratios -------------------------------------------------------------------------------------

    def _length(self) -> Array:
        if "text" in self.roles:
            return self._text_lengths(self._series("text"))
        if self.roles.tokens:
            return self._list_lengths()
        L = self._numbers("length")
        if L.dtype.kind == "f":
            fraction = np.floor(L) != L
            if fraction.any():
                self.fail(fraction, "length", f"is {L[fraction][0]:g} {WANTED['length']}")
        return L

    def _text_lengths(self, texts: pl.Series) -> Array:
        """Characters of a text, or of all messages of a chat."""
        if is_chat(texts.dtype):
            parts = pl.element().struct.field("content").cast(pl.String).str.len_chars()
            texts = texts.list.eval(parts).list.sum()
        else:
            texts = texts.cast(pl.String).str.len_chars()
        return np.asarray(texts.fill_null(0).to_numpy())

    def _list_lengths(self) -> Array:
        """The trained tokens of each answer; those that are not, by the mask or the length, are left out of `keep`."""
        role = self._ratio_roles[0]
        L = self._list(role).list.len().to_numpy().astype(np.intp)
        if L.min() < 1:
            self.fail(L < 1, role, "is a list without numbers: leave such answers out")
        if role == "logprobs":
            other = self._list("old_logprobs").list.len().to_numpy()
            self._same(other, L, "old_logprobs", "holds {0} numbers where the other log-probs are {1}")
        self.raw, self.keep = L, None
        if (mask := self._mask(L)) is not None:
            self.keep = mask
        elif "length" in self.roles:
            said = self._numbers("length")
            if (said != L).any():
                beyond = padding.position(L) >= np.repeat(said, L)
                if (said > L).any() or (self._nonzero() & beyond).any():
                    self._same(said, L, role, "holds {1} numbers where the length is {0:g}: leave padding out")
                self.keep = ~beyond
        elif (found := padding.found([self._list(name) for name in self._ratio_roles], L)) is not None:
            self.fail(found[0], role, found[1])
        if self.keep is None:
            return L
        kept = np.add.reduceat(self.keep, np.cumsum(L) - L, dtype=np.intp)
        if kept.min() < 1:
            self.fail(kept < 1, role, "has no trained token in its mask: leave such answers out")
        return kept

    def _mask(self, L: Array) -> Array | None:
        """Which tokens the mask counts, in one flat array."""
        if "mask" not in self.roles or self._series("mask").null_count() == self.batch.height:
            return None
        mask = self._list("mask")
        sizes = mask.list.len().to_numpy()
        if self.roles.columns["mask"].lower() == "attention_mask" and (sizes != L).any():
            return None  # that of the prompt and the answer
        self._same(sizes, L, "mask", "holds {0} numbers where the log-probs are {1}")
        return np.asarray(mask.explode().cast(pl.Float64).fill_null(0.0).to_numpy() > 0)

    @property
    def _ratio_roles(self) -> tuple[str, ...]:
        return ("log_ratio",) if "log_ratio" in self.roles else PAIR

    def _nonzero(self) -> Array:
        """Tokens that have a value other than 0 in one of the lists."""
        found = [self._list(r).explode().cast(pl.Float64).fill_null(1.0).to_numpy() != 0 for r in self._ratio_roles]
        return np.asarray(np.logical_or.reduce(found))

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
            flat = self._flat("log_ratio")
        else:
            flat = self._flat("logprobs") - self._flat("old_logprobs")
        return flat, np.add.reduceat(flat, np.cumsum(L, dtype=np.intp) - L)

    def _flat(self, role: str) -> Array:
        values = self._list(role).explode().cast(pl.Float64).to_numpy()  # a null becomes NaN
        if self.keep is not None:
            values = values[self.keep]
        if not np.abs(values).max() <= TOO_LARGE:
            row = np.repeat(np.arange(len(self.raw)), self.raw)
            row = row if self.keep is None else row[self.keep]
            token = int(np.argmax(~(np.abs(values) <= TOO_LARGE)))
            self.fail(
                np.arange(len(self.raw)) == row[token],
                role,
                "holds an empty, NaN or infinite value: leave such answers out, or give --mask COLUMN if it is padding",
            )
        return values

    # --- advantages -------------------------------------------------------------------------------------------------

    def _advantages(self, L: Array) -> Array:
        """One number per answer: 0 for a row without one, and the mean over trained tokens of a list."""
        values = self._series("advantage")
        if isinstance(values.dtype, pl.List):
            values = self._token_advantages(values, L)
        self.no_advantage = values.null_count()
        if self.no_advantage == self.batch.height:
            return np.zeros(self.batch.height)
        numbers = values.cast(pl.Float64).fill_null(0.0).to_numpy()
        if not np.abs(numbers).max() <= TOO_LARGE:
            bad = ~(np.abs(numbers) <= TOO_LARGE)
            self.fail(bad, "advantage", f"is {numbers[bad][0]:g} {WANTED['advantage']}")
        return numbers

    def _token_advantages(self, lists: pl.Series, L: Array) -> pl.Series:
        sizes = lists.list.len().fill_null(0).to_numpy().astype(np.intp)
        flat = lists.filter(sizes > 0).explode().cast(pl.Float64).to_numpy()
        keep = padding.position(sizes) < np.repeat(L, sizes)
        if self.roles.tokens and self.keep is not None and (sizes == self.raw).all():
            keep = self.keep
        elif ((sizes > 0) & (sizes < L)).any():
            short = (sizes > 0) & (sizes < L)
            self.fail(
                short, "advantage", f"holds {sizes[short][0]} numbers where the answer has {L[short][0]:g} tokens"
            )
        row = np.repeat(np.arange(len(sizes)), sizes)[keep]
        table = pl.DataFrame({"row": row, "value": flat[keep]}).group_by("row", maintain_order=True)
        found = table.agg(pl.col("value").mean(), first=pl.col("value").first(), same=pl.col("value").n_unique() == 1)
        self.averaged = int((~found["same"]).sum())
        values = pl.Series([None], dtype=pl.Float64).extend_constant(None, len(sizes) - 1)
        return values.scatter(
            found["row"], pl.select(pl.when(found["same"]).then(found["first"]).otherwise(found["value"])).to_series()
        )

    # --- rewards and attributes -------------------------------------------------------------------------------------

    def _rewards(self) -> Columns:
        """Rewards, and which rows have one if some have none: an answer that could not be scored."""
        if "reward" not in self.roles or self._series("reward").null_count() == self.batch.height:
            return {}
        rewards = self._series("reward").cast(pl.Float64).to_numpy()
        if float(rewards.min()) >= -TOO_LARGE and float(rewards.max()) <= TOO_LARGE:  # not where NaN
            return {"reward": rewards}
        scored = ~np.isnan(rewards)
        large = scored & ~(np.abs(rewards) <= TOO_LARGE)
        if large.any():
            self.fail(large, "reward", f"is {rewards[large][0]:g} {WANTED['reward']}")
        return {"reward": np.where(scored, rewards, 0.0), "scored": scored}

    def _by(self, values: pl.Series) -> Array:
        if not values.dtype.is_numeric():
            return values.cast(pl.String).fill_null(NO_VALUE).to_numpy().astype(object)
        numbers = values.cast(pl.Float64).to_numpy()  # a null becomes NaN
        if np.isfinite(numbers).all() and values.dtype in (pl.Int64, pl.Int32, pl.UInt64, pl.UInt32):
            return values.to_numpy()
        if not np.isfinite(numbers).all():
            self.fail(~np.isfinite(numbers), "by", "is empty, NaN or infinite: fill it, or leave such rows out")
        return numbers
