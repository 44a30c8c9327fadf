"""The columns of a table: which role each has, and their values, checked, as arrays.

Roles are given by the user or recognised by the names that trainers use. The first bad value stops the audit with a
sentence that names its file, row and column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fspo.audits.sources import Source
from fspo.settings import hint

Array = NDArray[Any]
Columns = dict[str, Array]

# The roles, and the column names by which each is recognised.
NAMES: dict[str, tuple[str, ...]] = {
    "length": ("length", "response_length", "completion_length", "num_tokens", "n_tokens", "response_len"),
    "log_ratio": ("log_ratio", "logratio", "log_ratios", "seq_log_ratio", "sequence_log_ratio"),
    "logprobs": ("logprobs", "log_probs", "log_prob", "new_logprobs", "per_token_logps", "logps"),
    "old_logprobs": ("old_logprobs", "old_log_probs", "old_log_prob", "old_per_token_logps", "old_logps"),
    "sampler_logprobs": (
        "sampler_logprobs", "sampling_per_token_logps", "sampling_logprobs", "rollout_log_probs", "rollout_logprobs",
        "inference_logprobs", "generation_logprobs",
    ),
    "accepted": ("accepted",),
    "clipped": ("clipped", "is_clipped", "is_masked", "clip_fraction", "clip_frac"),
    "advantage": ("advantage", "advantages"),
    "reward": ("reward", "rewards", "score", "scores"),
    "truncated": ("truncated", "is_truncated"),
    "off_policy": ("off_policy",),
    "mask": ("mask", "response_mask", "completion_mask", "loss_mask", "action_mask"),
    "part": ("task", "data_source", "dataset", "source", "domain", "category", "subset", "env", "ability"),
    "text": ("output", "completion", "response", "responses"),
}  # fmt: skip
RATIOS = ("log_ratio", "logprobs", "old_logprobs", "sampler_logprobs")
PAIR = ("logprobs", "old_logprobs")
OPTIONAL = ("advantage", "reward", "truncated", "off_policy", "part")  # a file may lack these

TOO_LARGE = 1e100  # no trainer writes numbers of this size, and their squares would overflow
SHARES = ("accepted", "clipped", "truncated", "off_policy")
LIMITS = {"length": (1, 1 << 53)} | dict.fromkeys(SHARES, (0, 1))
WANTED = {"length": "where a positive whole number is needed: leave such rows out"}
WANTED |= dict.fromkeys(SHARES, "where true, false or a share between them is needed")
FINITE = "where a finite number is needed: leave such rows out"
EMPTY = "is empty: fill it, or leave such rows out"
NO_VALUE = "(none)"  # of a column of categories
PADDING_SHARE = 0.2  # share of rows that end in equal values, from which they count as padded


# --- roles -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Roles:
    """The column of each role that a file has."""

    columns: dict[str, str]
    tokens: bool  # whether log-ratios or log-probs are lists with one number per token
    by: str | None = None
    mismatch: bool = False  # whether the log-ratios are of the trainer over the sampler, not of a policy that moved

    def __contains__(self, role: str) -> bool:
        return role in self.columns

    @property
    def needed(self) -> list[str]:
        """The columns to read."""
        return list(dict.fromkeys([*self.columns.values(), *([self.by] if self.by else [])]))

    @property
    def has_length(self) -> bool:
        return self.tokens or "length" in self or "text" in self

    @property
    def has_ratio(self) -> bool:
        return "log_ratio" in self or "logprobs" in self


def assign(
    schema: Mapping[str, pl.DataType], given: dict[str, str], by: str | None, mismatch: bool, where: str
) -> Roles:
    """The roles of the columns of the file `where`: those given, then those recognised by name and fitting type.

    `mismatch` states that the log-ratios are of trainer and sampler. They are without it too where the sampler's
    log-probs are the only ones to compare with.
    """
    for role, name in (given | ({} if by is None else {"by": by})).items():
        if role not in (*NAMES, "by"):
            raise ValueError(f"columns have no role {role!r}{hint(role, NAMES)}")
        if name not in schema:
            raise ValueError(f"{where} has no column {name!r} (asked for as {role}){hint(name, schema)}")
    columns = dict(given)
    for role, name in columns.items():
        if not _fits(schema[name], role):
            raise ValueError(f"{where}, column {name!r} holds {schema[name]}, which cannot be the {role}")
    if by is not None and (schema[by].is_nested() or schema[by] == pl.Object):
        raise ValueError(f"{where}, column {by!r} holds {schema[by]}: --by needs words or numbers")
    for role, names in NAMES.items():
        known = next((name for name in names if name in schema and _fits(schema[name], role)), None)
        if role not in given and known is not None:
            columns[role] = known
    sampler, old = columns.pop("sampler_logprobs", None), columns.get("old_logprobs", columns.get("logprobs"))
    forced = mismatch
    if sampler and old and (mismatch or not ("log_ratio" in columns or columns.keys() >= set(PAIR))):
        mismatch = True
        columns |= {"logprobs": old, "old_logprobs": sampler}
        columns.pop("log_ratio", None)
    elif not given.keys().isdisjoint(PAIR):
        if lacking := [role for role in PAIR if role not in columns]:
            flag = lacking[0].replace("_", "-")
            raise ValueError(f"{where}: log-probs come in pairs, and the other column is unknown: give --{flag} NAME")
        columns.pop("log_ratio", None)
    elif "log_ratio" in columns or not columns.keys() >= set(PAIR):  # one of the pair alone gives no ratio
        columns = {role: name for role, name in columns.items() if role not in PAIR}
    if mismatch:  # a rule drops an answer whatever its advantage, and S near 0 is no sign of an on-policy update
        unused = ("advantage", "off_policy", *(("accepted", "clipped") if forced else ()))
        columns = {role: name for role, name in columns.items() if role not in unused}
    if "accepted" in columns:
        columns.pop("clipped", None)
    if columns.get("part") == by:
        columns.pop("part", None)
    tokens = any(isinstance(schema[columns[role]], pl.List) for role in RATIOS if role in columns)
    if not tokens:
        columns.pop("mask", None)
    if tokens or "length" in columns:
        columns.pop("text", None)
    return Roles(columns, tokens, by, mismatch)


def _fits(kind: pl.DataType, role: str) -> bool:
    """Numbers may be given as text; what is not a number is named when it is read."""
    if role == "text":
        return kind in (pl.String, pl.Null) or is_chat(kind)
    if role == "part":
        return kind in (pl.String, pl.Categorical, pl.Enum, pl.Null) or kind.is_integer()
    if isinstance(kind, pl.List):
        flags = role in ("mask", "clipped") and kind.inner == pl.Boolean
        return role in (*RATIOS, "advantage", "mask", "clipped") and (
            kind.inner.is_numeric() or kind.inner == pl.Null or flags
        )
    if role == "mask":
        return kind == pl.Null
    if kind == pl.Boolean:
        return role not in ("length", *RATIOS)
    return kind.is_numeric() or kind in (pl.Null, pl.String)


def is_chat(kind: pl.DataType) -> bool:
    """Whether a column holds lists of messages: {role, content}."""
    inner = kind.inner if isinstance(kind, pl.List) else None
    return isinstance(inner, pl.Struct) and any(
        f.name == "content" and f.dtype in (pl.String, pl.Null) for f in inner.fields
    )


# --- values ----------------------------------------------------------------------------------------------------------


class BatchReader:
    """One batch. A column that is empty throughout counts as missing; some rewards may be empty."""

    def __init__(self, batch: pl.DataFrame, roles: Roles, source: Source, first: int) -> None:
        self.batch, self.roles, self.source, self.first = batch, roles, source, first

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
        for role in ("accepted", "truncated", "off_policy"):
            columns |= self._some(role)
        columns |= self._clipped(columns["length"])
        columns |= self._advantages(columns["length"])
        columns |= self._rewards()
        if "part" in self.roles:
            columns["part"] = self._series("part").cast(pl.String).fill_null(NO_VALUE).to_numpy().astype(object)
        if self.roles.by is not None:
            columns["by"] = self._by(self.batch[self.roles.by])
        return columns, tokens

    def _series(self, role: str) -> pl.Series:
        """The column of a role; numbers given as text are numbers."""
        values = self.batch[self.roles.columns[role]]
        if role in ("text", "part"):
            return values
        if values.dtype != pl.String:
            whole = role in LIMITS and values.dtype.is_integer()
            plain = whole or not values.dtype.is_numeric() or values.dtype in (pl.Float32, pl.Float64)
            return values if plain else values.cast(pl.Float64)
        text = values.str.strip_chars()
        numbers = text.cast(pl.Float64, strict=False)
        bad = (numbers.is_null() & values.is_not_null() & (text != "")).to_numpy()
        if bad.any() and not (role == "reward" and bad.all()):  # words alone, such as grades, are no numbers
            self.fail(bad, role, f"is {values[int(np.argmax(bad))]!r:.40} where a number is needed")
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
        return self._within(role, numbers)

    def _within(self, role: str, numbers: Array) -> Array:
        """The numbers, if they lie within the limits of the role."""
        low, high = LIMITS.get(role, (-TOO_LARGE, TOO_LARGE))
        if not (float(numbers.min()) >= low and float(numbers.max()) <= high):  # also where NaN
            wide = numbers.astype(np.float64)
            bad = ~((wide >= low) & (wide <= high))
            self.fail(bad, role, f"is {wide[bad][0]:g} {WANTED.get(role, FINITE)}")
        return numbers

    def _filled(self, role: str) -> pl.Series:
        values = self._series(role)
        if values.null_count():
            self.fail(values.is_null().to_numpy(), role, EMPTY)
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
            stated = self._numbers("length")
            self._same(np.maximum(stated, L), L, role, "holds {1} numbers where the length is {0:g}")
            self.keep = _position(L) < np.repeat(stated, L) if (stated != L).any() else None
        else:
            self._refuse_padding(role, L)
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
        self._same(sizes, L, "mask", "holds {0} numbers where the log-probs are {1}")
        return np.asarray(mask.explode().cast(pl.Float64).fill_null(0.0).to_numpy() > 0)

    @property
    def _ratio_roles(self) -> tuple[str, ...]:
        return ("log_ratio",) if "log_ratio" in self.roles else PAIR

    def _refuse_padding(self, role: str, L: Array) -> None:
        """Stop where many lists end with three equal values.

        One or two tokens of probability 1 are common, and lists of a single value are on-policy log-ratios.
        """
        padded = L > 3
        varied = np.zeros(len(L), bool)
        for values in (self._list(name) for name in self._ratio_roles):
            last = values.list.tail(3)
            padded &= (last.list.min() == last.list.max()).fill_null(False).to_numpy()
            varied |= (values.list.n_unique() > 1).to_numpy() if padded.any() else False
        if (padded & varied).mean() >= PADDING_SHARE:
            self.fail(padded, role, "ends in equal values, which look like padding: give --mask or --length")

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

    # --- advantages, and what was clipped ---------------------------------------------------------------------------

    def _advantages(self, L: Array) -> Columns:
        """One number per answer: the mean over trained tokens of a list."""
        if "advantage" not in self.roles or not isinstance(self._series("advantage").dtype, pl.List):
            return self._some("advantage")
        means = self._token_means("advantage", self._series("advantage"), L)
        if means.null_count() == len(means):
            return {}
        if means.null_count():
            self.fail(means.is_null().to_numpy(), "advantage", EMPTY)
        return {"advantage": self._within("advantage", means.to_numpy())}

    def _clipped(self, L: Array) -> Columns:
        """What was accepted, from a column of what was clipped: per answer, or a flag per token."""
        if "clipped" not in self.roles:
            return {}
        values = self._series("clipped")
        if not isinstance(values.dtype, pl.List):
            share = self._some("clipped").get("clipped")
            return {} if share is None else {"accepted": 1 - share.astype(np.float64)}
        means = self._token_means("clipped", values, L)
        return {} if means.null_count() == len(means) else {"accepted": 1 - means.fill_null(0.0).to_numpy()}

    def _token_means(self, role: str, lists: pl.Series, L: Array) -> pl.Series:
        """The mean of each list over the trained tokens, null for an empty one."""
        sizes = lists.list.len().fill_null(0).to_numpy()
        if self.roles.tokens and self.keep is not None and (sizes == self.raw).all():
            flat = lists.explode().cast(pl.Float64).to_numpy()[self.keep]
            return pl.Series(np.add.reduceat(flat, np.cumsum(L) - L) / L, nan_to_null=True)
        if (short := (sizes > 0) & (sizes < L)).any():
            self.fail(short, role, f"holds {sizes[short][0]} numbers where the answer has {L[short][0]:g} tokens")
        table = pl.DataFrame({"values": lists.cast(pl.List(pl.Float64)), "L": L})
        return table.select(pl.col("values").list.head("L").list.mean()).to_series()

    # --- rewards and attributes -------------------------------------------------------------------------------------

    def _rewards(self) -> Columns:
        """Rewards, and which rows have one: an answer that could not be scored has none."""
        if "reward" not in self.roles or self._series("reward").null_count() == self.batch.height:
            return {}
        rewards = self._series("reward").cast(pl.Float64).to_numpy()  # a null becomes NaN
        scored = ~np.isnan(rewards)
        if scored.all():
            return {"reward": self._within("reward", rewards)}
        return {"reward": self._within("reward", np.where(scored, rewards, 0.0)), "scored": scored}

    def _by(self, values: pl.Series) -> Array:
        if not values.dtype.is_numeric():
            return values.cast(pl.String).fill_null(NO_VALUE).to_numpy().astype(object)
        numbers = values.cast(pl.Float64).to_numpy()  # a null becomes NaN
        if not np.isfinite(numbers).all():
            self.fail(~np.isfinite(numbers), "by", "is empty, NaN or infinite: fill it, or leave such rows out")
        return values.to_numpy() if values.dtype.is_integer() else numbers


def _position(sizes: Array) -> Array:
    """0, 1, ... within each list of these sizes, in one flat array."""
    ends = np.cumsum(sizes)
    return np.asarray(np.arange(int(ends[-1])) - np.repeat(ends - sizes, sizes))
