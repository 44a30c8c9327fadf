"""The role of each column: given by the user, or found by the names that trainers use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
    "text": ("output", "completion", "response", "responses"),
}  # fmt: skip
LISTS = ("log_ratio", "logprobs", "old_logprobs")


@dataclass(frozen=True)
class Roles:
    """The column of each role that the data has."""

    columns: dict[str, str]
    tokens: bool  # whether log-ratios or log-probs are lists with one number per token
    by: str | None = None

    def __contains__(self, role: str) -> bool:
        return role in self.columns

    @property
    def needed(self) -> list[str]:
        """The columns to read."""
        return list(dict.fromkeys([*self.columns.values(), *([self.by] if self.by else [])]))


def assign(schema: Mapping[str, pl.DataType], given: Mapping[str, str], by: str | None, where: str) -> Roles:
    """The roles of the columns of the file `where`: those given, then those found by name and fitting type."""
    for role in given:
        if role not in NAMES:
            raise ValueError(f"columns have no role {role!r}{hint(role, NAMES)}")
    for role, name in [*given.items(), *([("by", by)] if by else [])]:
        if name not in schema:
            raise ValueError(f"{where} has no column {name!r} (asked for as {role}){hint(name, schema)}")
    found = dict(given)
    for role, names in NAMES.items():
        known = next((n for n in names if n in schema and _fits(schema[n], role)), None)
        if role not in found and known is not None:
            found[role] = known
    pair = {"logprobs", "old_logprobs"}
    if pair & given.keys():
        if not pair <= found.keys():
            flag = (pair - found.keys()).pop().replace("_", "-")
            raise ValueError(f"{where}: log-probs come in pairs, and the other column is unknown: give --{flag} NAME")
        found.pop("log_ratio", None)
    elif "log_ratio" in found or not pair <= found.keys():  # one of the pair alone gives no ratio
        found = {role: name for role, name in found.items() if role not in pair}
    tokens = any(isinstance(schema[found[role]], pl.List) for role in LISTS if role in found)
    if tokens or "length" in found:
        found.pop("text", None)
    elif "text" not in found:
        raise ValueError(
            f"{where} has no length of the answers: give --length COLUMN; its columns: {', '.join(schema)}"
        )
    roles = Roles(found, tokens, by)
    for role, name in found.items():
        if not _fits(schema[name], role):
            raise ValueError(f"{where}, column {name!r} holds {_described(schema[name])}, which cannot be the {role}")
    return roles


def _fits(kind: pl.DataType, role: str) -> bool:
    if role == "text":
        return kind == pl.String
    if isinstance(kind, pl.List):
        return role in LISTS and (kind.inner.is_numeric() or kind.inner == pl.Null)
    return kind.is_numeric() or kind in (pl.Boolean, pl.Null)


def _described(kind: pl.DataType) -> str:
    return "text" if kind == pl.String else f"{kind}".lower()
