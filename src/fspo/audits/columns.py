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
LONGEST = 1 << 20  # tokens of an answer; sums are kept for each length
LIMITS = {"length": (1, LONGEST)} | dict.fromkeys(SHARES, (0, 1))
WANTED = {"length": f"where a positive whole number (at most {LONGEST:,}) is needed: leave such rows out"}
WANTED |= dict.fromkeys(SHARES, "where true, false or a share between them is needed")
FINITE = "where a finite number is needed: leave such rows out"
EMPTY = "is empty: fill it, or leave such rows out"
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
    return kind.is_numeric() or kind == pl.Null or (kind == pl.String and role != "reward")  # grades are no numbers


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
        self.filled = {role for role, name in roles.columns.items() if batch[name].null_count() < batch.height}

    def fail(self, bad: Array, role: str, sentence: str) -> NoReturn:
        name = self.roles.by if role == "by" else self.roles.columns.get(role, role)
        raise ValueError(f"{self.source.place(self.first + int(np.argmax(bad)))}, column {name!r} {sentence}")

    def columns(self) -> tuple[Columns, Array | None]:
        """The columns by role, and the token log-ratios in one flat array if the file has them.

        An empty answer, which is possible where the length is that of a text, has the length 0.
        """
        tokens = None
        if self.roles.tokens:
            columns, tokens = self._of_tokens()
        else:
            columns = {"length": self._length()}
            if "log_ratio" in self.filled:
                columns["log_ratio"] = self._numbers("log_ratio")
            elif self.filled >= set(PAIR):
                columns["log_ratio"] = self._numbers("logprobs") - self._numbers("old_logprobs")
        for role in ("advantage", "accepted", "clipped", "truncated", "off_policy"):
            if role in self.filled and role not in columns:
                columns[role] = self._numbers(role, columns["length"])
        if "clipped" in columns:
            columns["accepted"] = 1 - columns.pop("clipped").astype(np.float64)
        if "reward" in self.filled:
            rewards = self._parsed("reward").cast(pl.Float64).to_numpy()  # a null becomes NaN
            scored = ~np.isnan(rewards)
            columns["reward"] = self._within("reward", np.where(scored, rewards, 0.0))
            if not scored.all():  # an answer that could not be scored has none
                columns["scored"] = scored
        if "part" in self.roles:
            columns["part"] = _words(self.batch[self.roles.columns["part"]])
        if self.roles.by is not None:
            columns["by"] = self._by(self.batch[self.roles.by])
        return columns, tokens

    def _numbers(self, role: str, L: Array | None = None) -> Array:
        """A number per answer, within the limits of the role: of a list, its mean over the first L."""
        values = self._parsed(role)
        if isinstance(values.dtype, pl.List):
            lists = pl.DataFrame({"values": values.cast(pl.List(pl.Float64)), "L": L})
            values = lists.select(pl.col("values").list.head("L").list.mean()).to_series()
        if values.null_count():
            self.fail(values.is_null().to_numpy(), role, EMPTY)
        return self._within(role, values.to_numpy())

    def _parsed(self, role: str) -> pl.Series:
        """The column of a role; numbers given as text are numbers."""
        values = self.batch[self.roles.columns[role]]
        if values.dtype == pl.String:
            numbers = values.str.strip_chars().cast(pl.Float64, strict=False)
            bad = (numbers.is_null() & values.is_not_null()).to_numpy()
            if bad.any():
                self.fail(bad, role, f"is {values[int(np.argmax(bad))]!r:.40} where a number is needed")
            return numbers
        return values.cast(pl.Float64) if values.dtype.is_decimal() else values

    def _within(self, role: str, numbers: Array) -> Array:
        """The numbers, if they lie within the limits of the role."""
        low, high = LIMITS.get(role, (-TOO_LARGE, TOO_LARGE))
        if not (float(numbers.min()) >= low and float(numbers.max()) <= high):  # also where NaN
            wide = numbers.astype(np.float64)
            bad = ~((wide >= low) & (wide <= high))
            self.fail(bad, role, f"is {wide[bad][0]:g} {WANTED.get(role, FINITE)}")
        return numbers

    def _length(self) -> Array:
        """The stated number of tokens; without one the characters of a text, or of all messages of a chat."""
        if "text" not in self.roles:
            L = self._numbers("length")
            if L.dtype.kind == "f" and (fraction := L % 1 != 0).any():
                self.fail(fraction, "length", f"is {L[fraction][0]:g} {WANTED['length']}")
            return L.astype(np.intp)
        texts = self.batch[self.roles.columns["text"]]
        if is_chat(texts.dtype):
            texts = texts.list.eval(pl.element().struct.field("content").cast(pl.String).str.len_chars()).list.sum()
        else:
            texts = texts.cast(pl.String).str.len_chars()
        return np.asarray(texts.fill_null(0).clip(0, LONGEST).to_numpy(), np.intp)

    def _by(self, values: pl.Series) -> Array:
        if not values.dtype.is_numeric():
            return _words(values)
        numbers = values.cast(pl.Float64).to_numpy()  # a null becomes NaN
        if not np.isfinite(numbers).all():
            self.fail(~np.isfinite(numbers), "by", "is empty, NaN or infinite: fill it, or leave such rows out")
        return values.to_numpy() if values.dtype.is_integer() else numbers

    # --- lists with a number per token ------------------------------------------------------------------------------

    def _of_tokens(self) -> tuple[Columns, Array]:
        """Per answer the number of trained tokens, the sum of their log-ratios and the means of other lists.

        Tokens that are not trained, by the mask or the length, are left out of the flat array of log-ratios.
        """
        ratio = ("log_ratio",) if "log_ratio" in self.roles else PAIR
        lists = {role: self._list(role) for role in ratio}
        for role in ("mask", "advantage", "clipped"):
            if role in self.filled and isinstance(self.batch[self.roles.columns[role]].dtype, pl.List):
                lists[role] = self._list(role)
        sizes = lists[ratio[0]].list.len().to_numpy().astype(np.intp)
        if sizes.min() < 1:
            self.fail(sizes < 1, ratio[0], "is a list without numbers: leave such answers out")
        for role, values in lists.items():
            other = values.list.len().to_numpy()
            if (differ := other != sizes).any():
                at = int(np.argmax(differ))
                self.fail(differ, role, f"holds {other[at]} numbers where the log-probs are {sizes[at]}")
        keep = self._trained(lists, sizes)
        L = sizes if keep is None else np.add.reduceat(keep, np.cumsum(sizes) - sizes, dtype=np.intp)
        if L.min() < 1:
            self.fail(L < 1, ratio[0], "has no trained token in its mask: leave such answers out")
        flat: Columns = {}
        for role in (name for name in lists if name != "mask"):
            numbers = lists[role].explode().cast(pl.Float64).to_numpy()  # a null becomes NaN
            flat[role] = numbers if keep is None else numbers[keep]
            if not np.abs(flat[role]).max() <= TOO_LARGE:
                answer = np.repeat(np.arange(len(L)), L)[np.argmax(~(np.abs(flat[role]) <= TOO_LARGE))]
                self.fail(
                    np.arange(len(L)) == answer, role, "holds an empty, NaN or infinite value: leave such answers out, "
                    "or give --mask COLUMN if it is padding",
                )  # fmt: skip
        tokens = flat["log_ratio"] if "log_ratio" in flat else flat["logprobs"] - flat["old_logprobs"]
        starts = np.cumsum(L) - L
        columns = {"length": self._within("length", L), "log_ratio": np.add.reduceat(tokens, starts)}
        columns |= {role: np.add.reduceat(flat[role], starts) / L for role in flat.keys() & {"advantage", "clipped"}}
        return columns, tokens

    def _list(self, role: str) -> pl.Series:
        values = self.batch[self.roles.columns[role]]
        if not isinstance(values.dtype, pl.List):
            self.fail(
                np.ones(1, bool), role, "is one number per answer where its pair is a list: give both in the same form"
            )
        if values.null_count():
            self.fail(values.is_null().to_numpy(), role, EMPTY)
        return values

    def _trained(self, lists: dict[str, pl.Series], sizes: Array) -> Array | None:
        """Which tokens the mask or the length counts, in one flat array; None where all are trained."""
        if "mask" in lists:
            return np.asarray(lists["mask"].explode().cast(pl.Float64).fill_null(0.0).to_numpy() > 0)
        role = next(iter(lists))
        if "length" not in self.roles:
            self._refuse_padding([lists[name] for name in lists if name in RATIOS], sizes)
            return None
        stated = self._length()
        if (short := stated > sizes).any():
            at = int(np.argmax(short))
            self.fail(short, role, f"holds {sizes[at]} numbers where the length is {stated[at]}")
        position = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return None if (stated == sizes).all() else np.asarray(position < np.repeat(stated, sizes))

    def _refuse_padding(self, lists: list[pl.Series], sizes: Array) -> None:
        """Stop where many lists end with three equal values.

        One or two tokens of probability 1 are common, and lists of a single value are on-policy log-ratios.
        """
        padded, varied = sizes > 3, np.zeros(len(sizes), bool)
        for values in lists:
            last = values.list.tail(3)
            padded &= (last.list.min() == last.list.max()).fill_null(False).to_numpy()
            varied |= (values.list.n_unique() > 1).to_numpy() if padded.any() else False
        if (padded & varied).mean() >= PADDING_SHARE:
            role = "log_ratio" if len(lists) == 1 else "logprobs"
            self.fail(padded, role, "ends in equal values, which look like padding: give --mask or --length")


def _words(values: pl.Series) -> Array:
    return values.cast(pl.String).fill_null("(none)").to_numpy().astype(object)
