"""What a step tells: fairness and health of its updates, the per-sequence rows, and the warnings a user needs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fspo import fairness
from fspo.local.config import TrainConfig
from fspo.local.evaluate import SOLVED
from fspo.local.experience import Experience
from fspo.local.records import SCHEMA
from fspo.local.update import Update


def summarise(
    sampled: Experience, trained: Experience | None, updates: list[Update], config: TrainConfig, step: int
) -> tuple[dict[str, Any], dict[str, list[Any]], dict[str, str]]:
    """The step's metrics, its rows for the records, and warnings by kind."""
    counts = sampled.counts()
    rewards = np.array(sampled.rewards)
    scored = rewards[~np.isnan(rewards)]
    metrics: dict[str, Any] = {
        "step": step,
        "reward": float(scored.mean()) if len(scored) else math.nan,
        "accuracy_train": float((scored >= SOLVED).mean()) if len(scored) else math.nan,
        "length": float(np.mean(sampled.lengths)),
        "truncated": float(1 - np.mean(sampled.finished)),
        "groups": counts.groups,
        "groups_without_variance": counts.without_variance,
        "groups_single": counts.single,
        "unscored": counts.unscored,
        "unscored_by_kind": sampled.failures,
    }
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    if trained is not None:
        for update in updates:
            _add_rows(columns, update, trained, step)
        metrics |= _update_metrics(updates, trained, config)
    return metrics, columns, _warnings(metrics, config)


def _update_metrics(updates: list[Update], trained: Experience, config: TrainConfig) -> dict[str, Any]:
    lengths = np.array(trained.lengths)
    done = [u for u in updates if not u.skipped]
    moved = [u for u in done if bool(u.log_ratio.any())]
    result: dict[str, Any] = {"on_policy": not moved, "updates": len(updates)}
    for key in ("loss", "grad_norm", "capped", "kl", "c_low", "c_high", "drift"):
        values = [u.metrics[key] for u in done if key in u.metrics]
        if values:
            result[key] = float(np.mean(values))
    if done:
        result["kl"] = done[-1].metrics["kl"]  # of the last update: how far the step went
        old = trained.old
        result["entropy"] = float(-old.nanmean())  # of the sampled tokens: unbiased, and free
    if moved:
        S = np.concatenate([u.log_ratio.numpy() for u in moved])
        L = np.concatenate([lengths[u.members] for u in moved])
        accepted = np.concatenate([u.accepted.numpy() for u in moved])
        # An answer without advantage has no gradient that clipping could remove.
        pulls = np.concatenate([np.array(trained.advantages)[u.members] != 0 for u in moved])
        if pulls.any():
            result |= clipping(S[pulls], L[pulls], accepted[pulls], config.log.bins)
        result |= {"ess": min(u.metrics["ess"] for u in moved)}
        result |= {key: moved[-1].metrics[key] for key in ("mu", "sigma")}
    return result


def clipping(S: np.ndarray, L: np.ndarray, accepted: np.ndarray, bins: int) -> dict[str, Any]:
    """What clipping did to responses of every length: (N,) sums, lengths and shares that survived."""
    report = fairness.measure(L, np.clip(accepted, 0, 1), bins=bins)
    return {
        "clip_rate": report.clip_rate,
        "lre": report.lre,
        "lre_interval": report.lre_interval,
        "flatness": report.flatness,
        "clip_by_length": [
            {
                "low": b.low, "high": b.high, "count": b.count, "clip_rate": b.clip_rate,
                "interval": (1 - b.interval[1], 1 - b.interval[0]),
            }
            for b in report.bins
        ],
        "log_ratio_size": float(np.abs(S).mean()),
    }  # fmt: skip


def _add_rows(columns: dict[str, list[Any]], update: Update, trained: Experience, step: int) -> None:
    lengths = trained.lengths
    for place, i in enumerate(update.members):
        example = trained.examples[trained.group[i]]
        row = {
            "step": step, "update": update.update, "staleness": update.staleness, "index": example["index"],
            "task": example["task"], "length": lengths[i], "truncated": not trained.finished[i],
            "reward": trained.rewards[i], "advantage": trained.advantages[i],
            "log_ratio": float(update.log_ratio[place]), "accepted": float(update.accepted[place]),
            "difficulty": example["difficulty"], "attributes": example["attributes"],
        }  # fmt: skip
        for name, value in row.items():
            columns[name].append(value)


def _warnings(metrics: dict[str, Any], config: TrainConfig) -> dict[str, str]:
    found = {}
    if metrics["truncated"] > 0.5:
        found["truncated"] = (
            f"{metrics['truncated']:.0%} of the answers met rollout.max_new_tokens = {config.rollout.max_new_tokens} "
            "and were cut off: raise it, or most rewards are of unfinished answers"
        )
    flat = metrics["groups_without_variance"] + metrics["groups_single"]
    if flat > 0.8 * metrics["groups"]:
        found["variance"] = (
            f"{flat} of {metrics['groups']} groups have no variance in their rewards and teach nothing: use an easier "
            "or harder task, larger groups, or rollout.dynamic"
        )
    if metrics["unscored"]:
        found["unscored"] = f"{metrics['unscored']} answers could not be scored; they count neither right nor wrong"
    if metrics.get("on_policy") and config.update.epochs * config.update.minibatches == 1:
        found["on_policy"] = (
            "every update is on-policy, so the ratio is 1 and clipping cannot act: raise update.epochs, "
            "update.minibatches or rollout.staleness"
        )
    if metrics.get("ess", 1.0) < 0.1:
        found["drift"] = (
            f"the effective sample size fell to {metrics['ess']:.1%}: the policy has drifted far from the one that "
            "sampled; lower update.lr or the number of updates a rollout"
        )
    return found
