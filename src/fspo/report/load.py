"""A run folder as one object. Whatever is missing, torn or empty is named in `notes`, and the rest is read.

Memory is bounded: per-sequence records are aggregated by polars a step and a bin of length at a time, and single
rows are kept only for the last steps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from fspo.report.text import slug

LENGTH_BINS = 8
HEAT_COLUMNS = 48  # spans of steps across the heat map
LAST_STEPS = 50  # at most so many steps are pooled as "the last steps"
LAST_ROWS = 200_000  # ... and at most so many rows
SAMPLE_STEPS = 40  # at most so many steps' answers are shown, evenly spread
SAMPLES_A_STEP = 4
LONGEST_TEXT = 2000  # characters of an answer that are shown

Row = dict[str, Any]


@dataclass(frozen=True)
class Records:
    """The per-sequence rows, aggregated."""

    steps: int
    rows: int
    off_policy: bool  # whether any update was off-policy, so that clipping could act
    edges: list[float]  # of the length bins, from the shortest to the longest answer
    clip: pl.DataFrame  # column, first, last (steps), bin, count, clip_rate: off-policy rows that have a gradient
    lengths: pl.DataFrame  # step, q05, q25, q50, q75, q95: each answer once
    last: pl.DataFrame  # step, length, log_ratio, accepted, advantage: off-policy rows of the last steps
    last_steps: tuple[int, int]

    @property
    def pulling(self) -> pl.DataFrame:
        """The rows of `last` that have a gradient, which clipping may remove."""
        return self.last.filter(PULLS)


@dataclass(frozen=True)
class Run:
    """What a run's folder holds."""

    folder: Path
    label: str = ""  # the name in the page, where the folder's own is not enough
    config: Row = field(default_factory=dict)
    metrics: list[Row] = field(default_factory=list)
    timings: list[Row] = field(default_factory=list)
    evaluations: list[Row] = field(default_factory=list)
    cosine: list[Row] = field(default_factory=list)  # measured directions of updates, where the run was asked for them
    samples: list[Row] = field(default_factory=list)  # of steps spread over the run, first and last included
    records: Records | None = None
    notes: list[str] = field(default_factory=list)  # what is missing or could not be read

    @property
    def name(self) -> str:
        return self.label or self.folder.resolve().name

    @property
    def objective(self) -> Row:
        value = self.config.get("objective")
        return value if isinstance(value, dict) else {"name": value} if value else {}


def load_all(folders: Sequence[str | Path]) -> list[Run]:
    """Several runs, each with a name of its own."""
    runs = [load(folder) for folder in folders]
    if len({slug(run.name) for run in runs}) == len(runs):
        return runs
    return [replace(run, label=f"{k}: {run.name}") for k, run in enumerate(runs, 1)]


def load(folder: str | Path) -> Run:
    """Read a run folder; nothing but the folder itself has to exist."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder: give the folder that `fspo train` wrote")
    notes: list[str] = []
    cosine = folder / "cosine.jsonl"  # optional
    return Run(
        folder=folder,
        config=_config(folder / "config.yaml", notes),
        metrics=_by_step(_rows(folder / "metrics.jsonl", "training curves", notes)),
        timings=_by_step(_rows(folder / "timings.jsonl", "times and tokens a second", notes)),
        evaluations=_evaluations(_rows(folder / "evaluations.jsonl", "held-out accuracy", notes)),
        cosine=_by_step(_rows(cosine, "measured directions", notes)) if cosine.is_file() else [],
        samples=_samples(_rows(folder / "samples.jsonl", "sample answers", notes)),
        records=_records(folder / "records", notes),
        notes=notes,
    )


def _config(path: Path, notes: list[str]) -> Row:
    if not path.is_file():
        notes.append("config.yaml is missing: the configuration is not shown.")
        return {}
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8", errors="replace"))
    except yaml.YAMLError as error:
        notes.append(f"config.yaml cannot be read: {str(error).splitlines()[0]}.")
        return {}
    if not isinstance(config, dict):
        notes.append("config.yaml is not a mapping: the configuration is not shown.")
        return {}
    return config


def _rows(path: Path, what: str, notes: list[str]) -> Iterator[Row]:
    """The objects of a JSONL file. A run that was killed may leave a torn line; it is counted and passed over."""
    if not path.is_file():
        notes.append(f"{path.name} is missing: no {what}.")
        return
    good = bad = 0
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if isinstance(row, dict) and isinstance(row.get("step"), int):
                good += 1
                yield row
            else:
                bad += 1
    if bad:
        notes.append(f"{path.name}: {bad} unreadable line{'s' * (bad > 1)} left out.")
    elif not good:
        notes.append(f"{path.name} is empty: no {what} yet.")


def _by_step(rows: Iterator[Row]) -> list[Row]:
    """In order, one row a step: after a resume the later row counts."""
    table = {row["step"]: row for row in rows}
    return [table[step] for step in sorted(table)]


def _evaluations(rows: Iterator[Row]) -> list[Row]:
    table = {(row["step"], str(row.get("split"))): row for row in rows}
    return [table[key] for key in sorted(table)]


def _samples(rows: Iterator[Row]) -> list[Row]:
    """Answers of steps spread over the run: when too many steps are held, every second of them goes.

    The last step always stays. Texts are cut here, so that memory is bounded by what is shown.
    """
    kept: dict[int, list[Row]] = {}
    last: tuple[int, list[Row]] = (-1, [])
    stride, seen = 1, -1
    for row in rows:
        step = row["step"]
        if step not in kept and step != last[0]:
            seen += 1
            last = (step, [])
            if seen % stride == 0:
                kept[step] = last[1]
            if len(kept) > SAMPLE_STEPS:
                stride *= 2
                kept = {s: kept[s] for s in list(kept)[::2]}
        target = kept.get(step, last[1] if step == last[0] else [])
        if len(target) < SAMPLES_A_STEP:
            target.append({k: _cut(v) if k in ("prompt", "completion") else v for k, v in row.items()})
    if last[1]:
        kept[last[0]] = last[1]
    return [row for step in sorted(kept) for row in kept[step]]


def _cut(text: Any) -> str:
    text = "" if text is None else str(text)
    left = len(text) - LONGEST_TEXT
    return text[:LONGEST_TEXT] + (f"\n… {left:,} more characters" if left > 0 else "")


COLUMNS: dict[str, Any] = {
    "step": pl.Int64,
    "update": pl.Int64,
    "staleness": pl.Int64,
    "length": pl.Float64,
    "log_ratio": pl.Float64,
    "accepted": pl.Float64,
    "advantage": pl.Float64,
}
# What another engine may not record, and what then stands for it: S is 0 in an on-policy update and nowhere else.
STANDS_FOR: dict[str, pl.Expr] = {
    "update": pl.lit(0),
    "staleness": (pl.col("log_ratio") != 0).cast(pl.Int64),
    "advantage": pl.lit(None),
}


# An answer whose advantage is 0 has no gradient to clip; where advantages are not recorded, every answer may have one.
PULLS = pl.col("advantage").is_null() | (pl.col("advantage") != 0)


def _records(folder: Path, notes: list[str]) -> Records | None:
    # Files are scanned together where their columns have the same types: a thousand scans are slow to put together.
    groups: dict[tuple[pl.DataType | None, ...], list[Path]] = {}
    paths, broken = [], []
    for path in sorted(folder.glob("step-*.parquet")):
        try:
            known = pl.read_parquet_schema(path)
        except (pl.exceptions.PolarsError, OSError):
            broken.append(f"{path.name} is not a readable Parquet file")
            continue
        lacking = [name for name in COLUMNS if name not in known and name not in STANDS_FOR]
        if lacking:
            broken.append(f"{path.name} lacks {', '.join(lacking)}")
        else:
            paths.append(path)
            groups.setdefault(tuple(known.get(name) for name in COLUMNS), []).append(path)
    if broken:
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        notes.append(f"records/: {broken[0]}{more}; left out.")
    table = pl.concat([_scan(group) for group in groups.values()]) if groups else None
    counts = None
    if table is not None:
        counts = table.select(
            rows=pl.len(),
            first=pl.col("step").min(),
            last=pl.col("step").max(),
            steps=pl.col("step").n_unique(),
            stale=pl.col("staleness").max(),
            shortest=pl.col("length").min(),
            longest=pl.col("length").max(),
            **{f"q{k}": pl.col("length").quantile(k / LENGTH_BINS, "lower") for k in range(1, LENGTH_BINS)},
        ).collect()
    if table is None or counts is None or not counts["rows"][0]:
        notes.append("records/ has no rows: no panels by answer.")
        return None
    c = counts.row(0, named=True)
    off_policy = bool(c["stale"])
    # The first update after a rollout has S = 0 exactly and cannot clip: it would only dilute the others.
    moved = table.filter(pl.col("staleness") > 0) if off_policy else table
    inner = sorted({c[f"q{k}"] for k in range(1, LENGTH_BINS)} - {c["longest"]})
    span = max(1, math.ceil((c["last"] - c["first"] + 1) / HEAT_COLUMNS))
    clip = (
        moved.filter(PULLS)
        .with_columns(
            bin=pl.sum_horizontal(pl.lit(0), *(pl.col("length") > edge for edge in inner)),
            column=(pl.col("step") - c["first"]) // span,
        )
        .group_by("column", "bin")
        .agg(
            first=pl.col("step").min(),
            last=pl.col("step").max(),
            count=pl.len(),
            clip_rate=1 - pl.col("accepted").mean(),
        )
        .sort("column", "bin")
        .collect()
    )
    lengths = (
        table.group_by("step", "update")
        .agg(**{f"q{q:02d}": pl.col("length").quantile(q / 100) for q in (5, 25, 50, 75, 95)})
        .sort("step", "update")
        .unique("step", keep="first", maintain_order=True)
        .collect()
    )
    last = _last(paths, off_policy, min(LAST_STEPS, max(5, len(paths) // 5)))
    return Records(
        steps=c["steps"],
        rows=c["rows"],
        off_policy=off_policy,
        edges=[c["shortest"], *inner, c["longest"]],
        clip=clip,
        lengths=lengths,
        last=last,
        last_steps=(last["step"].min(), last["step"].max()),  # type: ignore[arg-type]
    )


def _scan(paths: list[Path]) -> pl.LazyFrame:
    """The needed columns of files with the same types, without rows that cannot be used."""
    known = pl.read_parquet_schema(paths[0])
    schema = {name: known[name] for name in COLUMNS if name in known}
    table = pl.scan_parquet(paths, schema=schema, extra_columns="ignore")
    table = table.with_columns(**{name: e for name, e in STANDS_FOR.items() if name not in known})
    return table.select(pl.col(name).cast(kind, strict=False) for name, kind in COLUMNS.items()).filter(
        (pl.col("length") > 0)
        & pl.col("step").is_not_null()
        & pl.col("log_ratio").is_finite()
        & pl.col("accepted").is_between(0, 1)
    )


def _last(paths: list[Path], off_policy: bool, steps: int) -> pl.DataFrame:
    """Rows of the last steps that have off-policy updates, read from the end until there are enough."""
    parts: list[pl.DataFrame] = []
    for path in reversed(paths):
        table = _scan([path])
        part = table.filter(pl.col("staleness") > 0) if off_policy else table
        rows = part.select("step", "length", "log_ratio", "accepted", "advantage").collect()
        if len(rows):
            parts.append(rows)
        if len(parts) >= steps or sum(len(p) for p in parts) >= LAST_ROWS:
            break
    return pl.concat(parts[::-1]).tail(LAST_ROWS)
