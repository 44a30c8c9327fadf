"""The role of each column: given by the user, or found by the names that trainers use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from fspo.settings import hint

# The roles, and the column names under which each is found.
NAMES: dict[str, tuple[str, ...]] = {
    "length": ("length", "response_length", "completion_length", "num_tokens", "n_tokens", "response_len"),
    "log_ratio": ("log_ratio", "logratio", "log_ratios", "seq_log_ratio", "sequence_log_ratio"),
    "logprobs": ("logprobs", "log_probs", "log_prob", "new_logprobs", "per_token_logps", "logps"),
    "old_logprobs": (
        "old_logprobs", "old_log_probs", "old_log_prob", "old_per_token_logps", "old_logps", "rollout_log_probs",
    ),
    "accepted": ("accepted",),
    "advantage": ("advantage", "advantages"),
    "reward": ("reward", "rewards", "score", "scores"),
    "truncated": ("truncated", "is_truncated"),
    "step": ("step", "global_step", "global_steps"),
    "off_policy": ("off_policy",),
    "mask": ("mask", "response_mask", "completion_mask", "loss_mask", "action_mask", "attention_mask"),
    "part": ("task", "data_source", "dataset", "source", "domain", "category", "subset", "env", "ability"),
    "text": ("output", "completion", "response", "responses"),
}  # fmt: skip
LISTS = ("log_ratio", "logprobs", "old_logprobs")
PAIR = ("logprobs", "old_logprobs")
OPTIONAL = ("advantage", "reward", "truncated", "step", "off_policy", "part", "mask")  # a file may lack these


@dataclass(frozen=True)
class Roles:
    """The column of each role that a file has."""

    columns: dict[str, str]
    tokens: bool  # whether log-ratios or log-probs are lists with one number per token
    by: str | None = None
    unfit: dict[str, str] = field(default_factory=dict)  # columns with the name of a role, and why they cannot have it

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


def assign(schema: Mapping[str, pl.DataType], given: Mapping[str, str], by: str | None, where: str) -> Roles:
    """The roles of the columns of the file `where`: those given, then those found by name and fitting type."""
    spelled = _lower(schema)
    # A file may lack an optional column although the user named it: another file has it.
    present = {role: name for role, name in given.items() if role not in OPTIONAL or name.lower() in spelled}
    found = {role: _spelled(name, schema, spelled, role, where) for role, name in present.items()}
    by = by and _spelled(by, schema, spelled, "by", where)
    for role, name in found.items():
        if not _fits(schema[name], role):
            raise ValueError(f"{where}, column {name!r} holds {_described(schema[name])}, which cannot be the {role}")
    unfit = {}
    for role, names in NAMES.items():
        if role in given:
            continue
        columns = [c for n in names if (c := n if n in schema else spelled.get(n, ""))]
        known = next((c for c in columns if _fits(schema[c], role)), None)
        if known is not None:
            found[role] = known
        elif columns and role != "part":
            unfit[role] = f"column {columns[0]!r} holds {_described(schema[columns[0]])}, which cannot be the {role}"
    if not given.keys().isdisjoint(PAIR):
        if lacking := [role for role in PAIR if role not in found]:
            flag = lacking[0].replace("_", "-")
            raise ValueError(f"{where}: log-probs come in pairs, and the other column is unknown: give --{flag} NAME")
        found.pop("log_ratio", None)
    elif "log_ratio" in found or not found.keys() >= set(PAIR):  # one of the pair alone gives no ratio
        found = {role: name for role, name in found.items() if role not in PAIR}
    if found.get("part") == by:
        found.pop("part", None)
    tokens = any(isinstance(schema[found[role]], pl.List) for role in LISTS if role in found)
    if not tokens:
        found.pop("mask", None)
        unfit.pop("mask", None)
    if tokens or "length" in found:
        found.pop("text", None)
        unfit.pop("text", None)
    return Roles(found, tokens, by, unfit)


def check_given(schema: Mapping[str, pl.DataType], given: Mapping[str, str], by: str | None, where: str) -> None:
    """Every role that was given exists, and its column too, in one file or another."""
    for role, name in given.items():
        if role not in NAMES:
            raise ValueError(f"columns have no role {role!r}{hint(role, NAMES)}")
        _spelled(name, schema, _lower(schema), role, where)
    if by is not None:
        _spelled(by, schema, _lower(schema), "by", where)


def _lower(schema: Mapping[str, pl.DataType]) -> dict[str, str]:
    """Names in lower case, and the columns: the first of those whose names differ in case only."""
    return {name.lower(): name for name in reversed(list(schema))}


def _spelled(name: str, schema: Mapping[str, pl.DataType], spelled: Mapping[str, str], role: str, where: str) -> str:
    """The column of this name, without regard to case if none has it exactly."""
    if name in schema:
        return name
    if name.lower() in spelled:
        return spelled[name.lower()]
    raise ValueError(f"{where} has no column {name!r} (asked for as {role}){hint(name, schema)}")


def _fits(kind: pl.DataType, role: str) -> bool:
    """Numbers may be given as text; what is not a number is named when it is read."""
    if role == "text":
        return kind in (pl.String, pl.Null) or is_chat(kind)
    if role == "part":
        return kind in (pl.String, pl.Categorical, pl.Enum, pl.Null) or kind.is_integer()
    if isinstance(kind, pl.List):
        flags = role == "mask" and kind.inner == pl.Boolean
        return role in (*LISTS, "advantage", "mask") and (kind.inner.is_numeric() or kind.inner == pl.Null or flags)
    if role == "mask":
        return kind == pl.Null
    if kind == pl.Boolean:
        return role not in ("length", *LISTS)
    return kind.is_numeric() or kind in (pl.Boolean, pl.Null, pl.String, pl.Categorical, pl.Enum)


def is_chat(kind: pl.DataType) -> bool:
    """Whether a column holds lists of messages: {role, content}."""
    inner = kind.inner if isinstance(kind, pl.List) else None
    return isinstance(inner, pl.Struct) and any(
        f.name == "content" and f.dtype in (pl.String, pl.Null) for f in inner.fields
    )


def _described(kind: pl.DataType) -> str:
    if isinstance(kind, pl.List):
        return f"lists of {_described(kind.inner)}"  # type: ignore[arg-type]
    if isinstance(kind, pl.Struct | pl.Object):
        return "objects"
    return "text" if kind == pl.String else "numbers" if kind.is_numeric() else f"{kind}".lower()
