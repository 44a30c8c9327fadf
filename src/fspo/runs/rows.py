"""The rows of a run: one per response and update, a Parquet file per step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from fspo import ratios

COLUMNS: dict[str, Any] = {
    "step": pl.Int32,
    "update": pl.Int32,  # index of the optimiser step in the rollout, from 0
    "staleness": pl.Int32,  # optimiser steps since the response was sampled
    "off_policy": pl.Boolean,  # whether the policy had moved since then, see fspo.ratios
    "index": pl.Int64,  # of the prompt in its task
    "task": pl.String,
    "length": pl.Int32,  # trained tokens, L
    "truncated": pl.Boolean,
    "reward": pl.Float32,
    "advantage": pl.Float32,
    "log_ratio": pl.Float64,  # S; null where the update left the response out, because it has no gradient
    "accepted": pl.Float32,  # share of the gradient that survived clipping; null likewise
    "mismatch": pl.Float64,  # sum over tokens of log pi_old - log pi_sampler, where the sampler is another engine
    "difficulty": pl.Float32,
    "attributes": pl.String,  # JSON
}
"""The schema. Another trainer leaves the columns that it does not know empty."""

NEEDED = ("step", "update", "off_policy", "length", "log_ratio", "accepted", "advantage")

HAS_GRADIENT = pl.col("advantage").is_null() | ratios.has_gradient(pl.col("advantage"))
"""Where advantages are not recorded, every response may have a gradient."""


def folder_of(run: Path) -> Path:
    return run / "records"


def path_of(run: Path, step: int) -> Path:
    return folder_of(run) / f"step-{step:06d}.parquet"


def files(run: Path) -> list[Path]:
    """The row files of a run, in the order of their steps."""
    paths = folder_of(run).glob("step-*.parquet")
    return sorted(path for path in paths if path.stem.removeprefix("step-").isdecimal())


def table(columns: dict[str, list[Any]]) -> pl.DataFrame:
    """The rows of a step, checked against the schema; a column that is not given is empty."""
    unknown = columns.keys() - COLUMNS.keys()
    if unknown:
        raise ValueError(f"rows have no column {sorted(unknown)[0]!r}: the schema is in fspo.runs.rows")
    count = len(columns["step"])
    return pl.DataFrame({name: columns.get(name, [None] * count) for name in COLUMNS}, schema=COLUMNS)


def check_column(name: str, values: Any) -> None:
    """Refuse values that are not of the column's type."""
    try:
        pl.Series(name, values, COLUMNS[name])
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        kinds = " and ".join(sorted({type(value).__name__ for value in values}))
        raise ValueError(f"the column {name} must hold {COLUMNS[name]} or None, not {kinds}") from None


def scan(paths: Sequence[Path]) -> pl.LazyFrame:
    """The needed columns of readable files, without rows that cannot be used or that an update left out."""
    wide = {"step": pl.Int64, "update": pl.Int64, "length": pl.Float64, "log_ratio": pl.Float64,
            "accepted": pl.Float64, "advantage": pl.Float64}  # fmt: skip
    table = pl.scan_parquet(list(paths), schema={name: COLUMNS[name] for name in NEEDED}, extra_columns="ignore")
    return table.with_columns(pl.col(name).cast(kind) for name, kind in wide.items()).filter(
        (pl.col("length") > 0)
        & pl.col("step").is_not_null()
        & (pl.col("log_ratio").abs() < 1e100)  # its square is a number too
        & pl.col("accepted").is_between(0, 1)
    )


def read(run: Path, columns: Sequence[str]) -> pl.DataFrame:
    """These columns of all rows of a finished run."""
    paths = files(run)
    if not paths:
        return pl.DataFrame(schema={name: COLUMNS[name] for name in columns})
    return pl.concat([pl.read_parquet(path, columns=list(columns)) for path in paths])
