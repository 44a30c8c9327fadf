"""The measurements of a finished run: accuracy, stability, clipping at every length, and the spread of S.

Drift, scale and growth of S are measured over off-policy responses, clipping over those of them that have a gradient
(see `fspo.ratios`). Sums per length are stored instead of rows, so that runs can be pooled afterwards.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fspo import fairness, objectives, ratios, runs
from fspo.comparisons.plan import Row
from fspo.fairness.bins import partition
from fspo.runs import rows as run_rows

__all__ = ["ATTRIBUTES", "BINS", "CLIP_RATE", "CURVES", "outcome"]

SPANS = 40  # most points of a curve
WINDOWS = 8  # of steps, in each of which H is fitted
SPIKE, BEFORE = 3.0, 20  # a gradient norm above 3 times the median of the 20 steps before it is a spike
CURVES = ("reward", "length", "clip_rate", "lre", "flatness", "kl", "ess", "grad_norm", "norm_clipped", "entropy")
ATTRIBUTES = ("task", "difficulty")
BINS = 6
CLIP_RATE = 0.1  # at which bands are compared on the same responses

Array = NDArray[Any]


def outcome(folder: Path, *, failed: bool = False) -> Row:
    """The measured columns of a row of the results, from the folder of a run."""
    run = runs.load(folder)
    responses = _off_policy(folder)
    return {
        **_accuracy(run.evaluations, failed),
        **_health(run.metrics),
        **_curves(run.metrics),
        "gains": _gains(run.evaluations),
        "features": json.dumps(_features(run.evaluations)),
        "gradient": [{"step": line.step} | share.model_dump() for line in run.cosine for share in line.shares],
        **_sums(responses),
        "stages": _stages(responses, run.metrics),
        **_growth(responses),
        **_cosine(run.cosine),
        "attributes": json.dumps(_same_rate(responses) + _attributes(responses)),
    }


def _off_policy(folder: Path) -> pl.DataFrame:
    """The responses of off-policy updates, with a column that marks those that have a gradient."""
    columns = ("step", "update", "staleness", "off_policy", "task", "length", "advantage", "log_ratio", "accepted",
               "difficulty")  # fmt: skip
    return (
        run_rows.read(folder, columns)
        .filter(pl.col("off_policy") & pl.col("log_ratio").is_finite())
        .with_columns(has_gradient=run_rows.HAS_GRADIENT, accepted=pl.col("accepted").cast(pl.Float64).clip(0, 1))
    )


def _accuracy(evaluations: Sequence[runs.Evaluated], failed: bool) -> Row:
    evaluations = [e for e in evaluations if e.by_difficulty]  # none where no answer could be scored
    steps = [e.step for e in evaluations]
    accuracy = [e.accuracy for e in evaluations if e.accuracy is not None]
    worst = [min(b.accuracy for b in e.by_difficulty) for e in evaluations]
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


def _gains(evaluations: Sequence[runs.Evaluated]) -> list[Row]:
    """Accuracy at the first and the last evaluation, by bin of difficulty; the prompts and so the bins are the same."""
    evaluations = [e for e in evaluations if e.by_difficulty]
    first, last = evaluations[0].by_difficulty, evaluations[-1].by_difficulty
    if [(b.low, b.high) for b in first] != [(b.low, b.high) for b in last]:
        return []  # some answers could not be scored
    return [
        {"low": a.low, "high": a.high, "count": a.count, "start": a.accuracy, "final": b.accuracy}
        for a, b in zip(first, last, strict=True)
    ]


def _features(evaluations: Sequence[runs.Evaluated]) -> Row:
    """The features of held-out answers over the steps."""
    names = sorted({name for e in evaluations for name in e.features})
    return {
        name: {
            "steps": [e.step for e in evaluations if name in e.features],
            "values": [e.features[name] for e in evaluations if name in e.features],
        }
        for name in names
    }


def _health(metrics: Sequence[runs.Metrics]) -> Row:
    norms = [m.grad_norm for m in metrics if m.grad_norm is not None]
    spikes = sum(norms[i] > SPIKE * float(np.median(norms[i - BEFORE : i])) for i in range(BEFORE, len(norms)))
    lengths = [m.length for m in metrics if m.length is not None]
    tenth = math.ceil(len(lengths) / 10)
    return {
        "spikes": spikes,
        "length_first": float(np.mean(lengths[:tenth])),
        "length_last": float(np.mean(lengths[-tenth:])),
        "skipped": metrics[-1].skipped,
    }


def _curves(metrics: Sequence[runs.Metrics]) -> Row:
    """Means over at most SPANS spans of steps, each at its middle step."""
    spans = [span for span in np.array_split(np.arange(len(metrics)), SPANS) if len(span)]
    result: Row = {"steps": [metrics[span[len(span) // 2]].step for span in spans]}
    for name in CURVES:
        values = [[v for i in span if (v := getattr(metrics[i], name, None)) is not None] for span in spans]
        result[name] = [float(np.mean(v)) if v else None for v in values]
    return result


def _sums(responses: pl.DataFrame) -> Row:
    S = pl.col("log_ratio")
    table = (
        responses.group_by("length")
        .agg(
            count=pl.col("has_gradient").sum(),
            accepted=pl.col("accepted").filter("has_gradient").sum(),
            all_count=pl.len(),
            total=S.sum(),
            square=(S * S).sum(),
        )
        .sort("length")
    )
    return {"lengths": table["length"].to_list()} | {
        name: table[name].to_list() for name in ("count", "accepted", "all_count", "total", "square")
    }


def _stages(responses: pl.DataFrame, metrics: Sequence[runs.Metrics]) -> list[Row]:
    """Drift and scale of S by the place of an update in its step: S spreads from one update to the next."""
    widths: Row = {}
    for name in ("c_low", "c_high"):
        known = [c for m in metrics if not m.on_policy and (c := getattr(m, name)) is not None]
        widths[name] = float(np.mean(known)) if known else None
    stages = []
    for part in responses.sort("update", maintain_order=True).partition_by("update", maintain_order=True):
        S, L = _floats(part, "log_ratio", "length")
        mu = ratios.drift(S, L)
        stages.append({
            "update": part["update"][0], "staleness": part["staleness"][0], "mu": mu, "sigma": ratios.scale(S, L, mu),
            "count": len(part), **widths,
        })  # fmt: skip
    return stages


def _growth(responses: pl.DataFrame) -> Row:
    """H in windows of steps; null where it cannot be fitted."""
    result: Row = {"h_steps": [], "h": [], "h_low": [], "h_high": []}
    for window in np.array_split(np.unique(responses["step"].to_numpy()), WINDOWS):
        if not len(window):
            continue
        part = responses.filter(pl.col("step").is_between(int(window[0]), int(window[-1])))
        try:
            law = fairness.scaling_law(*_floats(part, "log_ratio", "length"))
            values: tuple[float | None, ...] = (law.exponent, *law.interval)
        except ValueError:
            values = (None, None, None)
        result["h_steps"].append(float(window.mean()))
        for name, value in zip(("h", "h_low", "h_high"), values, strict=True):
            result[name].append(value)
    return result


def _cosine(measured: Sequence[runs.Cosine]) -> Row:
    return {
        "cosine_steps": [line.step for line in measured],
        "cosine": [line.measured for line in measured],
        "cosine_bound": [line.bound_tight for line in measured],
        "cosine_bound_full": [line.bound for line in measured],
    }


def _same_rate(responses: pl.DataFrame) -> list[Row]:
    """Fairness over length of bands of three widths in L, each set to clip 10 % of the run's responses.

    This shows what the shape of a band does, whatever its width and the run's own objective. Bands are centred on 0 and
    have no dual clip, which has a width of its own.
    """
    S, L, A = _floats(responses, "log_ratio", "length", "advantage")
    clippable = responses["has_gradient"].to_numpy()
    if len(np.unique(L[clippable])) < 2:
        return []
    recorded = objectives.Responses(S, L, np.sign(A), mu=0.0)
    entry: Row = {"by": "length"}
    for name in objectives.LENGTH_LAWS:
        plain = {"dual": None} if "dual" in objectives.get_class(name).model_fields else {}
        accepted = objectives.get(name, **plain).at_clip_rate(recorded, CLIP_RATE).accepted
        if accepted is not None:
            entry[name] = _report(L[clippable], accepted[clippable])
    return [entry]


def _attributes(responses: pl.DataFrame) -> list[Row]:
    """Fairness over attributes other than length, in the second half of the run.

    `own` is what the run's objective clipped. `pooled` and `partition` are what one FSPO band, and one for each part,
    would clip of the same S when both are calibrated to clip 10 % of the first half.
    """
    steps = np.unique(responses["step"].to_numpy())
    if len(steps) < 2:
        return []
    middle = int(steps[(len(steps) - 1) // 2])
    late = (responses["step"] > middle).to_numpy()
    clippable = responses["has_gradient"].to_numpy() & late
    S, L, accepted = _floats(responses, "log_ratio", "length", "accepted")
    result = []
    for name in ATTRIBUTES:
        bins = partition(_values(responses[name]), BINS)
        parts = np.array(bins.labels)[bins.index]
        if len(bins) < 2 or not clippable.any():
            continue
        try:
            bands = fairness.partition_bands(S[~late], L[~late], parts[~late], CLIP_RATE)
        except ValueError:
            continue
        entry: Row = {"by": name, "own": _report(L[clippable], accepted[clippable], parts[clippable])}
        unknown = np.full(late.sum(), "")  # a part that the bands do not know gets the pooled band
        for kind, labels in (("pooled", unknown), ("partition", parts[late])):
            low, high = bands.bounds(L[late], labels)
            inside = (S[late] >= low) & (S[late] <= high)
            entry[kind] = _report(L[late], inside.astype(float), parts[late])
        result.append(entry)
    return result


def _floats(responses: pl.DataFrame, *names: str) -> list[Array]:
    return [responses[name].to_numpy().astype(np.float64) for name in names]


def _values(attribute: pl.Series) -> Array:
    return attribute.to_numpy().astype(str) if attribute.dtype == pl.String else attribute.to_numpy()


def _report(lengths: Array, accepted: Array, parts: Array | None = None) -> Row:
    report = fairness.measure(lengths, accepted, by=parts, bins=BINS)
    return {
        "clip_rate": report.clip_rate,
        "lre": report.lre,
        "flatness": report.flatness,
        "bins": [{"label": b.label, "count": b.count, "clip_rate": b.clip_rate} for b in report.bins],
    }
