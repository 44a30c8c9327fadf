"""The rows that are audited, as arrays: which role each column has, and its values, checked.

Roles are given, or recognised by the names that trainers use. The first bad value stops the audit with its file, row
and column. Of a large table a random sample is audited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fspo import objectives, ratios
from fspo.audits.sources import Source
from fspo.objectives import Objective, Responses
from fspo.settings import hint

Array = NDArray[Any]
Columns = dict[str, Array]

# The roles, and the column names by which each is recognised.
NAMES: dict[str, tuple[str, ...]] = {
    "length": ("length", "response_length", "completion_length", "num_tokens", "n_tokens", "response_len"),
    "log_ratio": ("log_ratio", "logratio", "log_ratios", "seq_log_ratio", "sequence_log_ratio"),
    "logprobs": ("logprobs", "log_probs", "log_prob", "new_logprobs", "per_token_logps", "logps", "trainer_logprobs"),
    "old_logprobs": ("old_logprobs", "old_log_probs", "old_log_prob", "old_per_token_logps", "old_logps",
                     "prev_logprobs"),
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
    "mask": ("mask", "response_mask", "completion_mask", "loss_mask", "action_mask", "token_loss_mask", "loss_masks"),
    "text": ("output", "completion", "response", "responses"),
}  # fmt: skip
RATIOS = ("log_ratio", "logprobs", "old_logprobs", "sampler_logprobs")
PAIR = ("logprobs", "old_logprobs")
LISTS = (*RATIOS, "mask", "advantage", "clipped")  # may have one number per token

TOO_LARGE = 1e100  # no trainer writes numbers of this size, and their squares would overflow
SHARES = ("accepted", "clipped", "truncated", "off_policy")
LIMITS = {"length": (1, TOO_LARGE)} | dict.fromkeys(SHARES, (0, 1))
WANTED = {"length": "where a positive whole number is needed: leave such rows out"}
WANTED |= dict.fromkeys(SHARES, "where true, false or a share between them is needed")
FINITE = "where a finite number is needed: leave such rows out"
EMPTY = "is empty: fill it, or leave such rows out"
PADDING_SHARE = 0.2  # share of rows that end in equal values, from which they count as padded
EVERYWHERE = ("log_ratio", "accepted", "advantage", "truncated")  # filled in all of the data or in none of it
MOST = 1 << 17  # rows, about, that are audited


# --- roles -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Roles:
    """The column of each role that a file has."""

    columns: dict[str, str]
    tokens: bool  # whether log-ratios or log-probs are lists with one number per token
    by: str | None = None
    mismatch: bool = False  # whether the log-ratios compare trainer and sampler, not two policies

    def __contains__(self, role: str) -> bool:
        return role in self.columns

    @property
    def needed(self) -> list[str]:
        """The columns to read."""
        return list(dict.fromkeys([*self.columns.values(), *([self.by] if self.by else [])]))

    @property
    def has_ratio(self) -> bool:
        return "log_ratio" in self or "logprobs" in self


def assign(
    schema: Mapping[str, pl.DataType], given: dict[str, str], by: str | None, mismatch: bool, where: str
) -> Roles:
    """The roles of the columns of the file `where`: those given, then those recognised by name and fitting type.

    `mismatch`: the log-ratios compare trainer and sampler; implied if only the sampler's log-probs can be compared.
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
    if mismatch and "mismatch" in schema and given.keys().isdisjoint(RATIOS):  # the rows of a run
        columns["log_ratio"] = "mismatch"
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
    ratios_are_lists = {isinstance(schema[columns[role]], pl.List) for role in RATIOS if role in columns}
    if len(ratios_are_lists) > 1:
        raise ValueError(f"{where} has log-probs as lists and as one number per answer: give both in the same form")
    tokens = True in ratios_are_lists
    if not tokens:
        columns.pop("mask", None)
    if tokens or "length" in columns:
        columns.pop("text", None)
    return Roles(columns, tokens, by, mismatch)


def assigned(sources: Sequence[Source], given: dict[str, str], by: str | None, mismatch: bool) -> list[Roles]:
    """The roles of the columns of each source, which must be the same."""
    by_source = [assign(source.schema, given, by, mismatch, source.names[0]) for source in sources]
    if not (by_source[0].tokens or "length" in by_source[0] or "text" in by_source[0]):
        raise ValueError(
            f"{sources[0].names[0]} has no length of the answers: give --length COLUMN; its columns: "
            f"{', '.join(sources[0].schema)}. Lists of log-probs (--logprobs, --old-logprobs) have a length too"
        )
    every = {role for roles in by_source for role in roles.columns}
    for source, roles in zip(sources, by_source, strict=True):
        lacking = sorted(every - roles.columns.keys())
        if lacking or (roles.tokens, roles.mismatch) != (by_source[0].tokens, by_source[0].mismatch):
            what = f"no {lacking[0]}" if lacking else "log-ratios in another form"
            raise ValueError(f"{source.names[0]} has {what}, unlike other files: audit them separately")
    return by_source


def _fits(kind: pl.DataType, role: str) -> bool:
    """Whether a column of this type can have the role. Text may hold numbers, which are checked when they are read."""
    if role == "text":
        return kind in (pl.String, pl.Null) or is_chat(kind)
    if isinstance(kind, pl.List):
        flags = kind.inner == pl.Boolean and role in ("mask", "clipped")
        return role in LISTS and (flags or kind.inner == pl.Null or kind.inner.is_numeric())
    if kind == pl.Boolean:
        return role not in ("length", "mask", *RATIOS)
    return kind == pl.Null or (role != "mask" and (kind.is_numeric() or (kind == pl.String and role != "reward")))


def is_chat(kind: pl.DataType) -> bool:
    """Whether a column holds lists of messages: {role, content}."""
    inner = kind.inner if isinstance(kind, pl.List) else None
    return isinstance(inner, pl.Struct) and any(
        f.name == "content" and f.dtype in (pl.String, pl.Null) for f in inner.fields
    )


# --- values ----------------------------------------------------------------------------------------------------------


class BatchReader:
    """One batch. A column that is empty throughout counts as missing; some rewards may be empty."""

    def __init__(self, batch: pl.DataFrame, roles: Roles, source: Source, rows: Array) -> None:
        self.batch, self.roles, self.source, self.rows = batch, roles, source, rows
        self.filled = {role for role, name in roles.columns.items() if batch[name].null_count() < batch.height}

    def fail(self, bad: Array, role: str, sentence: str) -> NoReturn:
        """Stop at the first bad row; `rows` has the number of each in the source."""
        name = self.roles.by if role == "by" else self.roles.columns.get(role, role)
        raise ValueError(f"{self.source.location(int(self.rows[np.argmax(bad)]))}, column {name!r} {sentence}")

    def columns(self) -> tuple[Columns, Array | None]:
        """The columns by role, and the token log-ratios in one flat array if the file has them.

        An empty answer, which is possible where the length is that of a text, has the length 0. An answer that could
        not be scored has the reward NaN.
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
                columns[role] = self._numbers(role)
        if "clipped" in columns:
            columns["accepted"] = 1 - columns.pop("clipped").astype(np.float64)
        if "reward" in self.roles:
            columns["reward"] = self._parsed("reward").to_numpy()  # a null becomes NaN
            self._within("reward", np.nan_to_num(columns["reward"], nan=0.0, posinf=np.inf, neginf=-np.inf))
        if self.roles.by is not None:
            values = self.batch[self.roles.by]
            if values.dtype.is_numeric() and not (fine := values.cast(pl.Float64).is_finite().fill_null(False)).all():
                self.fail(~fine.to_numpy(), "by", "is empty, NaN or infinite: fill it, or leave such rows out")
            words = values.cast(pl.String).fill_null("(none)").to_numpy().astype(object)
            columns["by"] = values.to_numpy() if values.dtype.is_numeric() else words
        return columns, tokens

    def _numbers(self, role: str) -> Array:
        """A number per answer, within the limits of the role."""
        values = self._parsed(role)
        if values.null_count():
            self.fail(values.is_null().to_numpy(), role, EMPTY)
        return self._within(role, values.to_numpy())

    def _parsed(self, role: str) -> pl.Series:
        """The column of a role; numbers given as text are numbers, and a list is its mean."""
        values = self.batch[self.roles.columns[role]]
        values = values.list.mean() if isinstance(values.dtype, pl.List) else values
        numbers = values.cast(pl.Float64, strict=False)
        if numbers.null_count() > values.null_count():
            bad = (numbers.is_null() & values.is_not_null()).to_numpy()
            self.fail(bad, role, f"is {values[int(np.argmax(bad))]!r:.40} where a number is needed")
        return numbers

    def _within(self, role: str, numbers: Array) -> Array:
        """The numbers, if they lie within the limits of the role."""
        low, high = LIMITS.get(role, (-TOO_LARGE, TOO_LARGE))
        bad = ~((numbers >= low) & (numbers <= high))  # also where NaN
        if role == "length":
            bad |= numbers % 1 != 0
        if bad.any():
            self.fail(bad, role, f"is {numbers[bad][0]:g} {WANTED.get(role, FINITE)}")
        return numbers

    def _length(self) -> Array:
        """The stated number of tokens; without one the characters of a text, or of all messages of a chat."""
        if "text" not in self.roles:
            return self._numbers("length").astype(np.intp)
        texts = self.batch[self.roles.columns["text"]]
        if is_chat(texts.dtype):
            texts = texts.list.eval(pl.element().struct.field("content").cast(pl.String).str.len_chars()).list.sum()
        else:
            texts = texts.cast(pl.String).str.len_chars()
        return np.asarray(texts.fill_null(0).to_numpy(), np.intp)

    # --- lists with a number per token ------------------------------------------------------------------------------

    def _of_tokens(self) -> tuple[Columns, Array]:
        """Per answer the number of trained tokens, the sum of their log-ratios and the means of other lists.

        Tokens that the mask does not count are left out of the flat array of log-ratios.
        """
        ratio = ("log_ratio",) if "log_ratio" in self.roles else PAIR
        lists = {role: self.batch[self.roles.columns[role]] for role in (*ratio, "mask", "advantage", "clipped")
                 if role in ratio or role in self.filled}  # fmt: skip
        lists = {role: values for role, values in lists.items() if isinstance(values.dtype, pl.List)}
        sizes = self._sizes(lists)
        L, keep = sizes, None
        if "mask" in lists:
            keep = np.asarray(lists["mask"].explode().cast(pl.Float64).fill_null(0.0).to_numpy() > 0)
            L = np.add.reduceat(keep, np.cumsum(sizes) - sizes, dtype=np.intp)
        else:
            self._refuse_padding(ratio[0], lists[ratio[0]], sizes)
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

    def _sizes(self, lists: dict[str, pl.Series]) -> Array:
        """The number of tokens of each answer, which all lists must have."""
        first = next(iter(lists))
        expected = lists[first].list.len().fill_null(0).to_numpy().astype(np.intp)
        for role, values in lists.items():
            if values.null_count():
                self.fail(values.is_null().to_numpy(), role, EMPTY)
            sizes = values.list.len().to_numpy()
            if (differ := sizes != expected).any():
                at = int(np.argmax(differ))
                self.fail(differ, role, f"holds {sizes[at]} numbers where the log-probs are {expected[at]}")
        if expected.min() < 1:
            self.fail(expected < 1, first, "is a list without numbers: leave such answers out")
        return expected

    def _refuse_padding(self, role: str, values: pl.Series, sizes: Array) -> None:
        """Stop where lists are not as long as the length states, or where many end with three equal values.

        One or two tokens of probability 1 are common, and lists of a single value are on-policy log-ratios.
        """
        if "length" in self.roles and (differ := self._length() != sizes).any():
            self.fail(differ, role, f"holds {sizes[np.argmax(differ)]} numbers, which is not the length: give --mask")
        last = values.list.tail(3)
        padded = (sizes > 3) & (last.list.min() == last.list.max()).fill_null(False).to_numpy()
        if padded.any():
            padded &= (values.list.n_unique() > 1).to_numpy()
        if padded.mean() >= PADDING_SHARE:
            self.fail(padded, role, "ends in equal values, which look like padding: give --mask")


# --- all rows, or a sample --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gathered:
    """The audited rows: their columns by role, and `moved`, whether the policy had moved, so that clipping can act."""

    roles: Roles
    columns: Columns
    rows: int  # of all the data
    stride: int  # one row in `stride` is audited
    empty: int  # answers without a character or a trained token among them, which are left out


def gather(sources: Sequence[Source], by_source: Sequence[Roles], rule: Objective | None) -> Gathered:
    """One pass over all sources. A rule replaces the column of what was accepted."""
    known = sum(count for source in sources for count in source.counts or [])
    stride = max(1, -(-known // MOST))
    rng = np.random.default_rng(0)
    parts: list[Columns] = []
    rows = empty = 0
    for source, roles in zip(sources, by_source, strict=True):
        for batch, numbers in source.batches(roles.needed):
            chosen = _one_of_each(stride, batch.height, rng)
            trained = chosen[_trained(batch, roles)[chosen]]
            empty += len(chosen) - len(trained)
            part = batch if len(trained) == batch.height else batch[trained]
            reader = BatchReader(part, roles, source, numbers[trained])
            rows += batch.height
            if part.is_empty():
                continue
            parts.append(_read(reader, rule))
            for role in EVERYWHERE:
                if (role in parts[0]) != (role in parts[-1]):
                    reader.fail(np.ones(1, bool), role, "is empty here and filled elsewhere: audit such files apart")
    columns = {name: np.concatenate([part[name] for part in parts]) for name in (parts[0] if parts else ())}
    written = columns.get("length", np.zeros(0)) > 0
    if not written.any():
        if by_source[0].mismatch and by_source[0].columns.get("log_ratio") == "mismatch":
            raise ValueError(
                f"{sources[0].names[0]} has no log-probs of the sampler: record them, or leave --mismatch out"
            )
        lack = "only empty answers" if rows else "no rows"
        raise ValueError(f"{sources[0].names[0]} has {lack}: there is nothing to audit")
    chosen = np.flatnonzero(written)
    if (more := round(len(chosen) / MOST)) > 1:  # a file of text does not say how many rows it has
        chosen, stride = chosen[_one_of_each(more, len(chosen), rng)], stride * more
    columns = {name: values[chosen] for name, values in columns.items()}
    return Gathered(by_source[0], columns, rows, stride, empty + int((~written).sum()))


def _trained(batch: pl.DataFrame, roles: Roles) -> Array:
    """Whether an answer has a trained token; all have one without a mask."""
    if not (roles.tokens and "mask" in roles):
        return np.ones(batch.height, bool)
    mask = batch[roles.columns["mask"]]
    return (mask.is_null() | (mask.list.max().cast(pl.Float64).fill_null(0.0) > 0)).to_numpy()


def _one_of_each(stride: int, n: int, rng: np.random.Generator) -> Array:
    """One random row of each block of `stride` of n rows."""
    if stride == 1:
        return np.arange(n)
    blocks = np.arange(0, n, stride)
    chosen = blocks + rng.integers(stride, size=len(blocks))
    return chosen[chosen < n]


def _read(reader: BatchReader, rule: Objective | None) -> Columns:
    columns, tokens = reader.columns()
    L, moved = columns["length"], np.ones(len(columns["length"]), bool)
    off_policy = columns.pop("off_policy", None)
    if "log_ratio" in columns and not reader.roles.mismatch:
        # Without a column that says so, S of a policy that has not moved is 0 up to rounding, see `fspo.ratios`.
        S = columns["log_ratio"]
        moved = np.abs(S) > ratios.ROUNDING * np.sqrt(L) if off_policy is None else off_policy > 0
        if rule is not None:
            A = columns.get("advantage", np.zeros(len(S)))
            tokens = None if tokens is None else tokens[np.repeat(moved, L)]
            rows = Responses(S[moved], L[moved].astype(np.float64), np.sign(A[moved]), tokens)
            columns["accepted"] = np.ones(len(S))
            if moved.any():
                columns["accepted"][moved] = objectives.accepted(rule, rows)
    return columns | {"moved": moved}
