"""Rows of a comparison, as `fspo compare` stores them, made of simulated responses."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from fspo import objectives
from fspo.comparisons.plan import NO_TRIAL
from fspo.comparisons.results import SCHEMA
from fspo.comparisons.suite import Suite

METHODS: dict[str, dict[str, Any]] = {
    "fspo": {"name": "fspo", "c_low": 0.03, "c_high": 0.03, "drift": "kl"},
    "fspo zero": {"name": "fspo", "c_low": 0.03, "c_high": 0.03, "drift": "zero"},
    "adaptive": {"name": "fspo", "clip_rate": 0.1, "drift": "bounded"},
    "gspo": {"name": "gspo", "clip_low": 3e-3, "clip_high": 4e-3},
    "rloo": {"name": "rloo"},
    "grpo": {"name": "grpo"},
    "dapo": {"name": "dapo"},
    "cispo": {"name": "cispo"},
    "luspo": {"name": "luspo", "clip_low": 3e-3, "clip_high": 4e-3},
    "reinforce": {"name": "reinforce"},
}
SKILL = {"fspo": 0.62, "adaptive": 0.6, "fspo zero": 0.58, "gspo": 0.5, "rloo": 0.52, "grpo": 0.55, "reinforce": 0.35}
SIGMA, MU = 0.03, -0.00045


def suite(
    methods: Sequence[str] = ("fspo", "gspo", "rloo", "grpo"),
    tasks: Sequence[str] = ("sort", "add"),
    settings: Sequence[str] = ("default",),
    title: str = "Does a fair band learn more?",
) -> Suite:
    return Suite(
        name="made", title=title, reference=methods[0],
        methods={m: {"objective": METHODS.get(m, METHODS["fspo"])} for m in methods},
        tasks={task: {} for task in tasks}, settings={setting: {} for setting in settings},
    )  # fmt: skip


def row(method: str, task: str, setting: str, seed: int, objective: dict[str, Any], failed: bool) -> dict[str, Any]:
    """The columns that tables and figures read; the others are null."""
    rng = np.random.default_rng([seed, *map(ord, f"{method}{task}{setting}{NO_TRIAL}")])
    skill = SKILL.get(method, 0.5) + rng.normal(0, 0.03) + 0.05 * (task == "add")
    n = 4 if failed else 9
    at = [10 * k for k in range(n)]
    accuracy = [0.2 + (skill - 0.2) * (1 - np.exp(-0.3 * k)) + rng.normal(0, 0.008) for k in range(n)]
    if failed:
        accuracy[-1] = 0.02
    L = np.clip(rng.lognormal(3.2, 0.6, 3000).round(), 4, 128)
    S = rng.normal(MU * L, SIGMA * np.sqrt(L))
    sign = np.where(rng.random(3000) < 0.5, 1.0, -1.0)
    rule = objectives.get(**objective)
    if rule.needs_tokens:  # a stand-in for a rule on tokens: a range on S that is the same at every length
        accepted = (sign * S <= 0.3).astype(np.float64)
    else:
        accepted = objectives.accepted(rule, objectives.Responses(S, L, sign))
    lengths, index = np.unique(L, return_inverse=True)
    known: dict[str, Any] = {
        "phase": "test", "task": task, "setting": setting, "method": method, "trial": NO_TRIAL, "seed": seed,
        "warm_start": 0, "objective": json.dumps({"name": objective["name"], **rule.model_dump(mode="json")}),
        "status": "failed" if failed else "finished", "version": "0.1.0", "commit": "abcdef0123456789",
        "eval_steps": at, "eval_accuracy": accuracy, "start": accuracy[0], "final": accuracy[-1],
        "auc": float(np.mean(accuracy)), "worst": 0.7 * accuracy[-1], "collapsed": failed, "spikes": seed % 3,
        "length_first": 30.0, "length_last": 33.0 + rng.normal(),
        "lengths": lengths.tolist(), "count": np.bincount(index).tolist(),
        "accepted": np.bincount(index, accepted).tolist(),
        "gains": [{"low": k / 4, "high": (k + 1) / 4, "count": 64, "start": 0.4 - k / 10,
                   "final": 0.4 - k / 10 + (accuracy[-1] - accuracy[0]) * (1.3 - k / 5)} for k in range(4)],
        "features": json.dumps({"worked": {"steps": at, "values": [0.9 - 0.6 * v for v in accuracy]}}),
        "optimum": json.dumps({"worked": 0.5}),
    }  # fmt: skip
    return dict.fromkeys(SCHEMA.names) | known


def rows(given: Suite, seeds: int = 8, fail: Collection[tuple[str, int]] = ()) -> list[dict[str, Any]]:
    """The rows of every test cell of the suite; `fail` holds (method, seed) of runs that failed."""
    return [
        row(method, task, setting, seed, values.objective, (method, seed) in fail)
        for task in given.tasks
        for setting in given.settings
        for method, values in given.methods.items()
        for seed in range(seeds)
    ]
