"""Rows of a comparison, as `fspo compare` stores them, made of simulated answers."""

import json
from types import SimpleNamespace

import numpy as np

from fspo import objectives

METHODS = {
    "fspo": {"name": "fspo", "c_low": 0.03, "c_high": 0.03, "drift": "kl"},
    "fspo zero": {"name": "fspo", "c_low": 0.03, "c_high": 0.03, "drift": "zero"},
    "adaptive": {"name": "fspo_adaptive", "clip_rate": 0.1},
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


def suite(methods=("fspo", "gspo", "rloo", "grpo"), tasks=("sort", "add"), settings=("default",), trials=(), **extra):
    """`trials` are values of the clip parameter, of every method, all of which are run."""
    return SimpleNamespace(
        title=extra.get("title", "Does a fair band learn more?"),
        reference=methods[0],
        methods={method: SimpleNamespace(trials=[_trial(method, x) for x in trials]) for method in methods},
        tasks=dict.fromkeys(tasks),
        settings=dict.fromkeys(settings),
        tuning=SimpleNamespace(all=bool(trials)),
    )


def _trial(method, x):
    key = "c" if METHODS.get(method, METHODS["fspo"])["name"].startswith("fspo") else "clip"
    return {f"{key}_low": x, f"{key}_high": x}


def band(objective, L):
    name = objective["name"]
    if name.startswith("fspo"):
        centre = 0 if objective.get("drift") == "zero" else MU * L
        c = objective.get("c_low", 0.05)
        return centre - c * np.sqrt(L), centre + c * np.sqrt(L)
    if name in ("gspo", "luspo", "rloo"):
        scale = 1 if name == "rloo" else L
        low, high = objective.get("clip_low", 0.2), objective.get("clip_high", 0.2)
        return scale * np.log1p(-low) + 0 * L, scale * np.log1p(high) + 0 * L
    return -0.3 + 0 * L, 0.3 + 0 * L


def row(method, task, setting, seed, *, objective, trial=-1, x=None, failed=False, answers=3000, evaluations=9):
    rng = np.random.default_rng([seed, *map(ord, f"{method}{task}{setting}{trial}")])
    skill = SKILL.get(method, 0.5) + rng.normal(0, 0.03) + 0.05 * (task == "add")
    n = 4 if failed else evaluations
    at = [10 * k for k in range(n)]
    accuracy = [0.2 + (skill - 0.2) * (1 - np.exp(-0.3 * k)) + rng.normal(0, 0.008) for k in range(n)]
    if failed:
        accuracy[-1] = 0.02
    L = np.clip(rng.lognormal(3.2, 0.6, answers).round(), 4, 128)
    S = rng.normal(MU * L, SIGMA * np.sqrt(L))
    low, high = band(objective, L)
    positive = rng.random(answers) < 0.5
    accepted = 1.0 - np.where(positive, high < S, low > S)
    if method == "reinforce":
        accepted[:] = 1.0
    lengths, index = np.unique(L, return_inverse=True)

    def sums(values):
        return np.bincount(index, values).tolist()

    steps = [2 * k + 1 for k in range(5 * (n - 1))]
    wave = [
        float(v) for v in 0.2 + (skill - 0.2) * (1 - np.exp(-np.array(steps) / 30)) + rng.normal(0, 0.01, len(steps))
    ]
    curves = dict.fromkeys(("reward", "clip_rate", "flatness", "kl", "ess", "grad_norm", "entropy"), wave)
    curves |= {"length": [30.0] * len(steps), "lre": [None, *(abs(v - 0.3) for v in wave[1:])]}
    banded = objective["name"].startswith("fspo")
    c = objective.get("c_low", 0.05) if banded else None
    full = {"name": objective["name"], **objectives.get(**objective).model_dump(mode="json")}
    h_steps = [10.0 * k + 5 for k in range(n - 1)]
    h = [0.5 + rng.normal(0, 0.02) for _ in h_steps]
    return {
        "suite": "s", "key": f"{method}{task}{setting}{trial}{seed}", "phase": "test", "task": task, "setting": setting,
        "method": method, "trial": trial, "x": x, "objective": json.dumps(full), "advantage": "rloo", "seed": seed,
        "config": "{}", "status": "failed" if failed else "finished", "error": "", "version": "0.1.0",
        "commit": "abcdef0123456789", "torch": "2", "seconds": 30.0, "cpu_seconds": 30.0,
        "eval_steps": at, "eval_accuracy": accuracy, "eval_worst": [0.7 * v for v in accuracy],
        "start": accuracy[0], "final": accuracy[-1], "score": float(np.mean(accuracy[-2:])), "peak": max(accuracy),
        "auc": float(np.mean(accuracy)), "worst": 0.7 * accuracy[-1], "collapsed": failed, "spikes": seed % 3,
        "length_first": 30.0, "length_last": 33.0 + rng.normal(), "skipped": 0, "steps": steps, **curves,
        "lengths": lengths.astype(int).tolist(), "count": sums(np.ones(answers)), "accepted": sums(accepted),
        "all_count": sums(np.ones(answers)), "total": sums(S), "square": sums(S * S),
        "stages": [{"update": 1, "staleness": 1, "mu": MU, "sigma": SIGMA, "count": answers, "c_low": c, "c_high": c}],
        "h_steps": h_steps, "h": h, "h_low": [v - 0.05 for v in h], "h_high": [v + 0.05 for v in h],
        "cosine_steps": at[1:], "cosine": [1 - 0.02 * rng.random() for _ in at[1:]],
        "cosine_bound": [-1.0 if k == 0 else 0.9 + 0.05 * rng.random() for k in range(len(at) - 1)],
        "cosine_bound_full": [0.5] * (len(at) - 1),
        "attributes": json.dumps([
            {"by": by, **{k: {"lre": v, "flatness": v} for k, v in values.items()}} for by, values in (
                ("length", {"fspo": 0.02, "gspo": 0.2, "rloo": 0.1}),
                ("difficulty", {"own": 0.1, "pooled": 0.12, "partition": 0.05}))
        ]),
    }  # fmt: skip


def rows(given, seeds=8, fail=()):
    """Of every cell of the suite; `fail` has (method, seed)."""
    found = []
    for task in given.tasks:
        for setting in given.settings:
            for method, values in given.methods.items():
                objective = METHODS.get(method, METHODS["fspo"])
                for k, trial in enumerate(values.trials or [{}]):
                    x = next(iter(trial.values()), None)
                    for seed in range(seeds):
                        found.append(
                            row(method, task, setting, seed, objective=objective | trial, trial=k if trial else -1, x=x,
                                failed=(method, seed) in fail)
                        )  # fmt: skip
    return found
