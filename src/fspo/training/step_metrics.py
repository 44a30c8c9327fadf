"""The metrics of a step: its answers, what its updates did, the fairness of clipping, and warnings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fspo import fairness, ratios
from fspo.config import TrainConfig
from fspo.objectives.clipping import Array
from fspo.objectives.objective import ratio_statistics
from fspo.runs import ClipBin, Metrics, unscored_warnings
from fspo.runs.rows import COLUMNS
from fspo.training.evaluate import SOLVED
from fspo.training.experience import Experience

if TYPE_CHECKING:
    from fspo.training.update import Update

NEARLY_ALL = 0.9  # a clip rate above this is worth a warning
FEW_SAMPLES = 0.1  # an effective sample size below this share is worth a warning

MEANS = ("loss", "grad_norm", "norm_clipped", "capped", "kl", "c_low", "c_high", "drift")
"""Metrics of a step that are means over its updates; the numbers of an objective's own are such means too."""


def update_statistics(S: Array, L: Array, accepted: Array, advantage: Array) -> dict[str, Any]:
    """mu, sigma, ess and clip rate of an update from its computed rows, however they were split into micro-batches."""
    if not len(S):
        return {"off_policy": False}
    found: dict[str, Any] = {"off_policy": ratios.off_policy(S, L), **ratio_statistics(S, L)}
    with_gradient = ratios.has_gradient(advantage)
    if with_gradient.any():
        found["clip_rate"] = float(1 - accepted[with_gradient].mean())
    return found


def clipping(S: Array, L: Array, accepted: Array, bins: int) -> dict[str, Any]:
    """What clipping did to responses of every length: (N,) log-ratios, lengths and shares that survived."""
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


def summarise(
    sampled: Experience, trained: Experience | None, updates: list[Update], config: TrainConfig, **known: Any
) -> Metrics:
    """The metrics of a step that sampled one rollout and trained on another (or on none yet).

    `known` are the metrics that the loop itself keeps: step, lr and skipped.
    """
    counts = sampled.counts()
    rewards = np.array(sampled.rewards)
    scored = rewards[~np.isnan(rewards)]
    values: dict[str, Any] = known | {
        "reward": float(scored.mean()) if len(scored) else math.nan,
        "accuracy_train": float((scored >= SOLVED).mean()) if len(scored) else math.nan,
        "length": float(np.mean(sampled.lengths)),
        "truncated": float(1 - np.mean(sampled.finished)),
        "groups": counts.groups,
        "groups_without_variance": counts.without_variance,
        "groups_single": counts.single,
        "unscored": counts.unscored,
        "unscored_by_kind": sampled.failures,
        "unscored_example": sampled.failure_messages,
    }
    if trained is not None:
        values |= _update_metrics(updates, trained, config)
    metrics = Metrics(**values)
    return metrics.model_copy(update={"warnings": warnings_of(metrics, config)})


def _update_metrics(updates: list[Update], trained: Experience, config: TrainConfig) -> dict[str, Any]:
    lengths, advantages = np.array(trained.lengths), np.array(trained.advantages)
    done = [u for u in updates if not u.skipped]
    moved = [u for u in done if u.off_policy]
    result: dict[str, Any] = {
        "on_policy": not moved,
        "updates": len(updates),
        "rows": sum(len(u.members) for u in updates),
        "rows_computed": sum(len(u.computed) for u in updates),
    }
    own = {key for u in done for key in u.metrics} - Metrics.model_fields.keys()
    for key in (*MEANS, *sorted(own)):
        values = [u.metrics[key] for u in done if key in u.metrics]
        if values:
            result[key] = float(np.mean(values))
    if done:
        # Of the last update that computed anything: how far the step went.
        result["kl"] = next((u.metrics["kl"] for u in reversed(done) if "kl" in u.metrics), None)
        if trained.old is not None:
            result["entropy"] = trained.old.entropy()
    if moved:
        S = np.concatenate([u.log_ratio.numpy() for u in moved])
        L = np.concatenate([lengths[u.computed] for u in moved])
        accepted = np.concatenate([u.accepted.numpy() for u in moved])
        with_gradient = ratios.has_gradient(np.concatenate([advantages[u.computed] for u in moved]))
        if with_gradient.any():
            result |= clipping(S[with_gradient], L[with_gradient], accepted[with_gradient], config.log.bins)
        result |= {"ess": min(u.metrics["ess"] for u in moved)}
        result |= {key: moved[-1].metrics[key] for key in ("mu", "sigma")}
    return result


def rows_of(updates: list[Update], trained: Experience | None, step: int) -> dict[str, list[Any]]:
    """One row per response and update, by column, see `fspo.runs.rows`."""
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    if trained is None:
        return columns
    lengths = trained.lengths
    for update in updates:
        pairs = zip(update.log_ratio.tolist(), update.accepted.tolist(), strict=True)
        known = dict(zip(update.computed, pairs, strict=True))
        for i in update.members:
            log_ratio, accepted = known.get(i, (None, None))
            example = trained.examples[trained.group[i]]
            row = {
                "step": step,
                "update": update.update,
                "staleness": update.staleness,
                "off_policy": update.off_policy,
                "index": example["index"],
                "task": example["task"],
                "length": lengths[i],
                "truncated": not trained.finished[i],
                "reward": trained.rewards[i],
                "advantage": trained.advantages[i],
                "log_ratio": log_ratio,
                "accepted": accepted,
                "difficulty": example["difficulty"],
                "attributes": example["attributes"],
            }
            for name, value in row.items():
                columns[name].append(value)
    return columns


def clipped_away(clip_rate: float) -> str:
    """The warning about a clip rate that leaves almost nothing to learn from."""
    return (
        f"clipping removed {clip_rate:.0%} of the gradients: widen the objective's clip range (`fspo audit` of the run "
        "recommends one), or lower the learning rate or the number of updates per rollout"
    )


def warnings_of(metrics: Metrics, config: TrainConfig) -> dict[str, str]:
    """What a user should act on, by kind."""
    found = {}
    if (metrics.truncated or 0) > 0.5:
        found["truncated"] = (
            f"{metrics.truncated:.0%} of the answers met rollout.max_new_tokens = {config.rollout.max_new_tokens} "
            "and were cut off: raise it, or most rewards are of unfinished answers"
        )
    groups = metrics.groups or 0
    flat = (metrics.groups_without_variance or 0) + (metrics.groups_single or 0)
    if flat > 0.8 * groups:
        found["variance"] = (
            f"{flat} of {groups} groups have no variance in their rewards and teach nothing: use an easier "
            "or harder task, larger groups, or rollout.dynamic"
        )
    found |= unscored_warnings(metrics)
    if metrics.on_policy and config.update.epochs * config.update.minibatches == 1:
        found["on_policy"] = (
            "every update is on-policy, so the ratio is 1 and clipping cannot act: raise update.epochs, "
            "update.minibatches or rollout.staleness"
        )
    if metrics.clip_rate is not None and metrics.clip_rate > NEARLY_ALL:
        found["clip_rate"] = clipped_away(metrics.clip_rate)
    if metrics.ess is not None and metrics.ess < FEW_SAMPLES:
        found["drift"] = (
            f"the effective sample size fell to {metrics.ess:.1%}: the policy has drifted far from the one that "
            "sampled; lower update.lr or the number of updates per rollout"
        )
    return found
