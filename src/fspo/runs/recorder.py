"""What the updates (optimiser steps) on a rollout did: rows, metrics and warnings, the same for every trainer.

    recorder = Recorder(folder)
    recorder.add(Update(...))      after each optimiser step: one row per response, and its metrics
    recorder.close(step=1)         after the last update of a rollout: writes the rows, the metrics and the warnings

A trainer that has tensors of each micro-batch makes its rows with `response_rows` and joins those of all ranks with
`gather`.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from fspo import fairness, ratios
from fspo.runs.folder import RunWarning, RunWriter
from fspo.runs.rows import COLUMNS
from fspo.runs.schema import ClipBin, Cosine, Metrics, unscored_warnings

if TYPE_CHECKING:
    from torch import Tensor

BINS = 6  # of length, as `log.bins`

MEANS = ("loss", "grad_norm", "norm_clipped", "capped", "kl", "c_low", "c_high", "drift")
"""Metrics of a step that are means over its updates; the numbers of an objective's own are such means too."""

NEARLY_ALL = 0.9  # a clip rate above this is worth a warning
FEW_SAMPLES = 0.1  # an effective sample size below this share is worth a warning


@dataclass
class Update:
    """One optimiser step: what happened to each of its responses, and its metrics.

    `columns` are those of `fspo.runs.rows`, one value per response. A response that was left out, because it has no
    gradient, has neither `log_ratio` nor `accepted`. The statistics of the others are added to `metrics`.
    """

    update: int  # place of the optimiser step in the rollout, from 0
    staleness: int  # optimiser steps since the responses were sampled
    columns: dict[str, list[Any]]
    metrics: dict[str, Any]
    skipped: bool = False  # without a finite gradient
    cosine: Cosine | None = None  # its measured direction, where `log.cosine` asks for it
    members: list[int] = field(default_factory=list)  # indices of the responses in their rollout

    def __post_init__(self) -> None:
        self.computed = [k for k, S in enumerate(self.columns["log_ratio"]) if S is not None]
        names = ("log_ratio", "length", "accepted", "advantage")
        values = ([self.columns[name][k] for k in self.computed] for name in names)
        self.log_ratio, self.lengths, self.accepted, advantages = (np.array(v, dtype=np.float64) for v in values)
        self.off_policy = ratios.off_policy(self.log_ratio, self.lengths)
        self.has_gradient = ratios.has_gradient(advantages)
        if self.computed:
            mu = ratios.drift(self.log_ratio, self.lengths)
            self.metrics |= {"mu": mu, "sigma": ratios.scale(self.log_ratio, self.lengths, mu)}
            self.metrics["ess"] = ratios.effective_share(self.log_ratio)
        if self.has_gradient.any():
            self.metrics["clip_rate"] = float(1 - self.accepted[self.has_gradient].mean())


class Recorder:
    """Keeps the updates on a rollout and writes them to a run folder when it ends.

    Without a writer, as on ranks other than the first, it only computes. With `optional`, a step that cannot be
    written (a full disk) is counted in `lost` and warned about once; the training goes on.
    """

    def __init__(self, writer: RunWriter | None = None, bins: int = BINS, *, optional: bool = False) -> None:
        self.writer, self.bins, self.optional = writer, bins, optional
        self.updates: list[Update] = []  # on the current rollout
        self.lost = 0  # steps that could not be written

    def add(self, update: Update) -> None:
        self.updates.append(update)

    def close(self, step: int, **known: Any) -> Metrics:
        """End a step: write its metrics and rows, and return the metrics. `known` are further metrics."""
        values = known | (summarise(self.updates, self.bins) if self.updates else {})
        metrics = Metrics(step=step, **values)
        metrics = metrics.model_copy(update={"warnings": warnings_of(metrics)})
        updates, self.updates = self.updates, []
        if self.writer is not None:
            try:
                _write(self.writer, metrics, updates)
            except (OSError, pl.exceptions.PolarsError) as error:
                if not self.optional:
                    raise
                self.lost += 1
                if self.lost == 1:
                    text = f"{self.writer.folder} cannot be written ({error}): the run goes on without its records"
                    warnings.warn(text, RunWarning, stacklevel=2)
        return metrics


def _write(writer: RunWriter, metrics: Metrics, updates: list[Update]) -> None:
    writer.append(metrics)
    writer.rows(metrics.step, _table(updates, metrics.step))
    for update in updates:
        if update.cosine is not None:
            writer.append(update.cosine)


def summarise(updates: list[Update], bins: int = BINS) -> dict[str, Any]:
    """The metrics of the updates on a rollout, see `fspo.runs.Metrics`: clipping over all off-policy updates."""
    done = [u for u in updates if not u.skipped]
    moved = [u for u in done if u.off_policy]
    values: dict[str, Any] = {
        "on_policy": not moved,
        "updates": len(updates),
        "rows": sum(len(u.columns["length"]) for u in updates),
        "rows_computed": sum(len(u.computed) for u in updates),
    }
    own = {key for u in done for key in u.metrics} - Metrics.model_fields.keys()
    for key in (*MEANS, *sorted(own)):
        each = [u.metrics[key] for u in done if key in u.metrics]
        if each:
            values[key] = float(np.mean(each))
    if done:
        # Of the last update that computed anything: how far the step went.
        values["kl"] = next((u.metrics["kl"] for u in reversed(done) if "kl" in u.metrics), None)
    if moved:
        values |= clipping(moved, bins)
        values["ess"] = min(u.metrics["ess"] for u in moved)
        values |= {key: moved[-1].metrics[key] for key in ("mu", "sigma")}
    return values


def clipping(updates: list[Update], bins: int = BINS) -> dict[str, Any]:
    """What clipping did to responses of every length in these updates; empty where none has a gradient."""
    S, L, accepted, has_gradient = (
        np.concatenate([getattr(u, name) for u in updates])
        for name in ("log_ratio", "lengths", "accepted", "has_gradient")
    )
    if not has_gradient.any():
        return {}
    S, L, accepted = S[has_gradient], L[has_gradient], accepted[has_gradient]
    report = fairness.measure(L, np.clip(accepted, 0, 1), bins=bins)
    return {
        "clip_rate": report.clip_rate,
        "lre": report.lre,
        "lre_interval": report.lre_interval,
        "flatness": report.flatness,
        "clip_by_length": [
            ClipBin(low=b.low, high=b.high, count=b.count, clip_rate=b.clip_rate, interval=b.clip_interval)
            for b in report.bins
        ],
        "log_ratio_size": float(np.abs(S).mean()),
    }


def warnings_of(metrics: Metrics) -> dict[str, str]:
    """What a user should act on, by kind."""
    kinds = {}
    if (metrics.truncated or 0) > 0.5:
        kinds["truncated"] = (
            f"{metrics.truncated:.0%} of the answers met the limit of new tokens and were cut off: raise it, or most "
            "rewards are of unfinished answers"
        )
    groups = metrics.groups or 0
    flat = (metrics.groups_without_variance or 0) + (metrics.groups_single or 0)
    if flat > 0.8 * groups:
        kinds["variance"] = (
            f"{flat} of {groups} groups have no variance in their rewards and teach nothing: use an easier or harder "
            "task, or larger groups"
        )
    kinds |= unscored_warnings(metrics)
    if metrics.on_policy and metrics.updates == 1:
        kinds["on_policy"] = (
            "every update is on-policy, so the ratio is 1 and clipping cannot act: make more updates per rollout "
            "(epochs or minibatches), or train on older answers"
        )
    if metrics.clip_rate is not None and metrics.clip_rate > NEARLY_ALL:
        kinds["clip_rate"] = (
            f"clipping removed {metrics.clip_rate:.0%} of the gradients: widen the objective's clip range (`fspo "
            "audit` of the run recommends one), or lower the learning rate or the number of updates per rollout"
        )
    if metrics.ess is not None and metrics.ess < FEW_SAMPLES:
        kinds["drift"] = (
            f"the effective sample size fell to {metrics.ess:.1%}: the policy has drifted far from the one that "
            "sampled; lower the learning rate or the number of updates per rollout"
        )
    return kinds


def _table(updates: list[Update], step: int) -> dict[str, list[Any]]:
    """One row per response and update, by column, see `fspo.runs.rows`."""
    table: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for u in updates:
        count = len(u.columns["length"])
        same = {"step": step, "update": u.update, "staleness": u.staleness, "off_policy": u.off_policy}
        columns = u.columns | {name: [value] * count for name, value in same.items()}
        for name, values in table.items():
            values.extend(columns.get(name, [None] * count))
    return table


# --- rows from the tensors of a micro-batch ---------------------------------------------------------------------------


def response_rows(
    logprobs: Tensor, old_logprobs: Tensor, mask: Tensor, advantages: Tensor, accepted: Tensor
) -> dict[str, list[Any]]:
    """One row per response of a micro-batch, by column; `kl` is the low-variance estimate of the sum over its tokens.

    Log-probs and mask are (B, T), `accepted` (B,) is the share of each response's gradient that survived clipping.
    """
    import torch

    with torch.no_grad():
        half = (torch.float16, torch.bfloat16)
        new, old = (x.detach().float() if x.dtype in half else x.detach() for x in (logprobs, old_logprobs))
        l = torch.where(mask, new - old, 0.0)
        lengths = mask.sum(-1)
        kl = torch.where(mask, torch.expm1(l.clamp(max=20.0)) - l, 0.0).sum(-1)
        if advantages.dim() == 2:
            advantages = torch.where(mask, advantages, 0.0).sum(-1) / lengths
        values = {"log_ratio": l.sum(-1), "accepted": accepted, "advantage": advantages, "kl": kl}
        columns = {name: value.detach().double().cpu().tolist() for name, value in values.items()}
        return columns | {"length": lengths.cpu().tolist()}


def gather(parts: list[dict[str, list[Any]]], copies: int = 1) -> dict[str, list[Any]]:
    """The rows of all micro-batches of all ranks, in the same order on each rank.

    `copies` is the number of neighbouring ranks that hold the same rows, as in sequence parallelism.
    """
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        all_parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(all_parts, parts)
        parts = [part for rank in all_parts[::copies] for part in rank]
    if not parts:
        raise RuntimeError("close() was called before any loss of the update")
    return {name: [value for part in parts for value in part[name]] for name in parts[0]}


def writer_of_rank(folder: str | Path | None) -> RunWriter | None:
    """The writer of a run folder on the first rank; None on the others, and without a folder."""
    import torch.distributed as dist

    first = not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0
    return RunWriter(folder) if folder is not None and first else None
