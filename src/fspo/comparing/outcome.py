"""What a finished run comes to: accuracy, stability, what clipping did to every length, and how S spread.

Clipping is counted over responses that have a gradient (an advantage), drift and spread over all responses, both only
in updates that were off-policy. Sums a length are kept in the place of rows, so that runs can be pooled afterwards.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fspo import fairness
from fspo.auditing.methods import Answers, at_rate
from fspo.fairness.measure import FEW_VALUES, FairnessReport, cut
from fspo.local.records import read_lines

SPANS = 40  # most points of a curve
WINDOWS = 8  # of steps, in each of which H is fitted
SPIKE, BEFORE = 3.0, 20  # a gradient norm above 3 times the median of the 20 steps before it is a spike
CURVES = ("reward", "length", "clip_rate", "lre", "flatness", "kl", "ess", "grad_norm", "entropy")
ATTRIBUTES = ("task", "difficulty")
BINS = 6
CLIP_RATE = 0.1  # at which bands are compared on the same answers
WHOLE_ANSWERS = ("fspo", "gspo", "rloo")  # the methods that clip whole answers, by their width: sqrt(L), L, fixed

Row = dict[str, Any]


def outcome(folder: Path, *, failed: bool = False) -> Row:
    """The measured fields of a row of the results, from the folder of a run."""
    metrics = read_lines(folder / "metrics.jsonl")
    rows = _rows(folder)
    return {
        **_accuracy(read_lines(folder / "evaluations.jsonl"), failed),
        **_health(metrics),
        **_curves(metrics),
        **_sums(rows),
        "stages": _stages(rows, metrics),
        **_growth(rows),
        **_cosine(read_lines(folder / "cosine.jsonl")),
        "attributes": json.dumps(_same_rate(rows) + _attributes(rows)),
    }


def _rows(folder: Path) -> pl.DataFrame:
    """The responses of off-policy updates."""
    columns = ["step", "update", "staleness", "task", "length", "advantage", "log_ratio", "accepted", "difficulty"]
    files = sorted((folder / "records").glob("step-*.parquet"))
    if not files:
        types = {"task": pl.String, "length": pl.Int32, "step": pl.Int32, "update": pl.Int32, "staleness": pl.Int32}
        return pl.DataFrame(schema={name: types.get(name, pl.Float64) for name in columns})
    moved = (pl.col("log_ratio") != 0).any().over("step", "update")
    found = pl.concat([pl.read_parquet(file, columns=columns) for file in files])
    return found.filter(moved).filter(pl.col("log_ratio").is_finite())


def _accuracy(evaluations: Sequence[Row], failed: bool) -> Row:
    steps = [e["step"] for e in evaluations]
    accuracy = [e["accuracy"] for e in evaluations]
    worst = [min(b["accuracy"] for b in e["by_difficulty"]) for e in evaluations]
    top = int(np.argmax(accuracy))
    span = steps[-1] - steps[0]
    return {
        "eval_steps": steps,
        "eval_accuracy": accuracy,
        "eval_worst": worst,
        "start": accuracy[0],
        "final": accuracy[-1],
        "score": float(np.mean(accuracy[-2:])),
        "peak": accuracy[top],
        "auc": float(np.trapezoid(accuracy, steps)) / span if span else accuracy[0],
        "worst": worst[-1],
        "collapsed": failed or min(accuracy[top:]) < accuracy[top] / 2,
    }


def _health(metrics: Sequence[Row]) -> Row:
    norms = [m["grad_norm"] for m in metrics if m.get("grad_norm") is not None]
    spikes = sum(norms[i] > SPIKE * float(np.median(norms[i - BEFORE : i])) for i in range(BEFORE, len(norms)))
    lengths = [m["length"] for m in metrics]
    tenth = math.ceil(len(lengths) / 10)
    return {
        "spikes": spikes,
        "length_first": float(np.mean(lengths[:tenth])),
        "length_last": float(np.mean(lengths[-tenth:])),
        "skipped": metrics[-1]["skipped"],
    }


def _curves(metrics: Sequence[Row]) -> Row:
    """Means over at most SPANS spans of steps, each under its middle step."""
    spans = [span for span in np.array_split(np.arange(len(metrics)), SPANS) if len(span)]
    result: Row = {"steps": [metrics[span[len(span) // 2]]["step"] for span in spans]}
    for name in CURVES:
        values = [[v for i in span if (v := metrics[i].get(name)) is not None] for span in spans]
        result[name] = [float(np.mean(v)) if v else None for v in values]
    return result


def _sums(rows: pl.DataFrame) -> Row:
    pulls, S = pl.col("advantage") != 0, pl.col("log_ratio")
    table = (
        rows.group_by("length")
        .agg(
            count=pulls.sum(),
            accepted=pl.col("accepted").cast(pl.Float64).clip(0, 1).filter(pulls).sum(),
            all_count=pl.len(),
            total=S.sum(),
            square=(S * S).sum(),
        )
        .sort("length")
    )
    return {"lengths": table["length"].to_list()} | {
        name: table[name].to_list() for name in ("count", "accepted", "all_count", "total", "square")
    }


def _stages(rows: pl.DataFrame, metrics: Sequence[Row]) -> list[Row]:
    """Drift and scale of S by the place of an update in its step: S spreads from one update to the next."""
    S, L = pl.col("log_ratio"), pl.col("length")
    mu = S.sum() / L.sum()
    table = rows.group_by("update").agg(
        staleness=pl.col("staleness").first(), mu=mu, sigma=((S - mu * L) ** 2 / L).mean().sqrt(), count=pl.len()
    )
    band: Row = {}
    for name in ("c_low", "c_high"):
        widths = [m[name] for m in metrics if m.get(name) is not None and not m.get("on_policy")]
        band[name] = float(np.mean(widths)) if widths else None
    return [stage | band for stage in table.sort("update").to_dicts()]


def _growth(rows: pl.DataFrame) -> Row:
    """H in windows of steps; null where there is nothing to fit."""
    result: Row = {"h_steps": [], "h": [], "h_low": [], "h_high": []}
    for window in np.array_split(np.unique(rows["step"].to_numpy()), WINDOWS):
        if not len(window):
            continue
        part = rows.filter(pl.col("step").is_between(int(window[0]), int(window[-1])))
        try:
            law = fairness.scaling_law(part["log_ratio"].to_numpy(), part["length"].to_numpy())
            values: tuple[float | None, ...] = (law.exponent, *law.interval)
        except ValueError:
            values = (None, None, None)
        result["h_steps"].append(float(window.mean()))
        for name, value in zip(("h", "h_low", "h_high"), values, strict=True):
            result[name].append(value)
    return result


def _cosine(found: Sequence[Row]) -> Row:
    names = {
        "cosine_steps": "step", "cosine": "measured", "cosine_bound": "bound_tight", "cosine_bound_full": "bound",
    }  # fmt: skip
    return {name: [row[key] for row in found] for name, key in names.items()}


def _same_rate(rows: pl.DataFrame) -> list[Row]:
    """Fairness over length of the bands of FSPO (without drift), GSPO and a fixed range, each of the width at which it
    clips 10 % of the run's answers: what the shape of a band does, whatever its width and the run's own rule."""
    S, L, A = (rows[name].to_numpy().astype(np.float64) for name in ("log_ratio", "length", "advantage"))
    answers = Answers(S, L, np.sign(A), None, mu=0.0)
    if len(np.unique(L[A != 0])) < 2:
        return []
    found = {name: at_rate(name, answers, CLIP_RATE).accepted for name in WHOLE_ANSWERS}
    pulls = answers.pulls
    reports = {name: _report(L[pulls], accepted[pulls]) for name, accepted in found.items() if accepted is not None}
    return [{"by": "length", **reports}]


def _attributes(rows: pl.DataFrame) -> list[Row]:
    """Fairness over other attributes than length, in the second half of the run.

    `own` is what the run's rule clipped. `pooled` and `partition` are what one FSPO band, and one for each part, would
    clip of the same S when both are calibrated at 10 % on the first half.
    """
    steps = np.unique(rows["step"].to_numpy())
    if len(steps) < 2:
        return []
    middle = int(steps[(len(steps) - 1) // 2])
    late = (rows["step"] > middle).to_numpy()
    pulls = (rows["advantage"] != 0).to_numpy() & late
    S, L = rows["log_ratio"].to_numpy(), rows["length"].to_numpy()
    accepted = np.clip(rows["accepted"].to_numpy(), 0, 1)
    result = []
    for name in ATTRIBUTES:
        parts = _parts(rows[name])
        if len(np.unique(parts)) < 2 or not pulls.any():
            continue
        try:
            bands = fairness.partition_bands(S[~late], L[~late], parts[~late], CLIP_RATE)
        except ValueError:
            continue
        inside = {}
        pooled = np.full(late.sum(), "")  # of no known part: the pooled band
        for kind, labels in (("pooled", pooled), ("partition", parts[late])):
            low, high = bands.bounds(L[late], labels)
            inside[kind] = (S[late] >= low) & (S[late] <= high)
        entry: Row = {"by": name, "own": _report(L[pulls], accepted[pulls], parts[pulls])}
        for kind, kept in inside.items():
            entry[kind] = _report(L[late], kept.astype(float), parts[late])
        result.append(entry)
    return result


def _parts(values: pl.Series) -> np.ndarray:
    """Labels of an attribute: its values, or bins of them where they are many numbers."""
    if values.dtype == pl.String or values.n_unique() <= FEW_VALUES:
        return values.cast(pl.String).to_numpy().astype(str)
    index, labels, _ = cut(values.to_numpy().astype(np.float64), BINS)
    return np.array(labels)[index]


def _report(lengths: np.ndarray, accepted: np.ndarray, parts: np.ndarray | None = None) -> Row:
    report: FairnessReport = fairness.measure(lengths, accepted, by=parts, bins=BINS)
    return {
        "clip_rate": report.clip_rate,
        "lre": report.lre,
        "flatness": report.flatness,
        "bins": [{"label": b.label, "count": b.count, "clip_rate": b.clip_rate} for b in report.bins],
    }
