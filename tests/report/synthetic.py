"""A run folder as the trainer writes it, made of simulated answers: S ~ Normal(mu L, sigma^2 L)."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import yaml

from fspo.fairness import measure, wilson

NASTY = '<script>alert("x")</script> \'"&<b> \x00\x1b[31m\x07 \ud800 \u202e end'


def write_jsonl(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def make_run(folder: Path, steps: int = 12, answers: int = 64, rule: str = "fspo", seed: int = 0) -> Path:
    """`rule` decides what is clipped: the band of FSPO, or GSPO's range on S / L."""
    rng = np.random.default_rng(seed)
    (folder / "records").mkdir(parents=True)
    objective = {"name": "fspo", "c_low": 0.03, "c_high": 0.03, "clip_rate": None, "drift": "kl", "exponent": 0.5}
    if rule == "gspo":
        objective = {"name": "gspo", "clip_low": 3e-4, "clip_high": 4e-4}
    config = {"model": "tiny:small", "task": {"name": "sort", "low": 4, "high": 40}, "objective": objective,
              "steps": steps, "seed": seed, "note": "<img src=http://example.com/x.png>"}  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    metrics, timings, samples, evaluations = [], [], [], []
    for step in range(1, steps + 1):
        skill = 0.25 + 0.45 * (1 - np.exp(-2.5 * step / steps))
        length = np.clip(rng.lognormal(3.2, 0.6, answers).round(), 4, 128)
        reward = (rng.random(answers) < skill * np.exp(-length / 120)).astype(float)
        advantage = reward - reward.mean()
        frames = []
        for update in range(4):
            sigma = 0.02 * np.sqrt(update)
            mu = -(sigma**2) / 2
            S = rng.normal(mu * length, sigma * np.sqrt(length) + 1e-300)
            if rule == "gspo":
                low, high = -3e-4 * length, 4e-4 * length
            else:
                low, high = mu * length - 0.03 * np.sqrt(length), mu * length + 0.03 * np.sqrt(length)
            clipped = ((advantage > 0) & (high < S)) | ((advantage < 0) & (low > S))
            frames.append(
                pl.DataFrame(
                    {"step": step, "update": update, "staleness": update, "index": np.arange(answers), "task": "sort",
                     "length": length.astype(int), "truncated": length >= 128, "reward": reward,
                     "advantage": advantage, "log_ratio": S, "accepted": 1.0 - clipped, "difficulty": length,
                     "attributes": "{}"}
                )
            )  # fmt: skip
        table = pl.concat(frames)
        table.write_parquet(folder / "records" / f"step-{step:06d}.parquet")
        moved = table.filter(pl.col("staleness") > 0)
        fairness = measure(moved["length"].to_numpy(), moved["accepted"].to_numpy(), 6)
        metrics.append(
            {"step": step, "reward": reward.mean(), "accuracy_train": float((reward == 1).mean()),
             "length": length.mean(), "truncated": float((length >= 128).mean()), "groups": 8,
             "groups_without_variance": 1, "unscored": 0, "clip_rate": fairness.clip_rate, "lre": fairness.lre,
             "lre_interval": list(fairness.lre_interval), "flatness": fairness.flatness,
             "mu": float(moved["log_ratio"].sum() / moved["length"].sum()), "sigma": 0.02,
             "ess": 0.9 - 0.1 * rng.random(), "kl": 2e-4 * (1 + rng.random()),
             "entropy": 1.2 * np.exp(-step / steps) + 0.02 * rng.normal(), "grad_norm": rng.lognormal(0, 0.4),
             "loss": -0.01, "lr": 1e-4, "capped": 0, "skipped": 0, "on_policy": False,
             "clip_by_length": [
                 {"low": b.low, "high": b.high, "count": b.count, "clip_rate": b.clip_rate,
                  "interval": [1 - b.interval[1], 1 - b.interval[0]]} for b in fairness.bins],
             "warnings": ["12 % of the answers were truncated <b>"] if step % 5 == 0 else []}
        )  # fmt: skip
        # fmt: off
        timings.append({"step": step, "rollout": 0.4, "scoring": 0.05, "update": 0.9, "evaluation": 0.0,
                        "total": 1.35 + 0.1 * rng.random(), "tokens_per_second": 5200 + 300 * rng.normal()})
        # fmt: on
        for k in range(3):
            text = NASTY if k == 0 else "abcde fghij"
            samples.append({"step": step, "prompt": f"sort: {text}", "completion": text, "reward": float(k == 1),
                            "length": 11, "truncated": k == 2, "task": "sort"})  # fmt: skip
    for step in range(0, steps + 1, max(1, steps // 6)):
        skill = 0.25 + 0.45 * (1 - np.exp(-2.5 * step / steps))
        bins = [(4, 12), (13, 21), (22, 30), (31, 40)]
        rates = [min(1.0, skill * f) for f in (1.5, 1.1, 0.8, 0.4)]
        by = [{"low": a, "high": b, "count": 50, "accuracy": r, "interval": list(wilson(50 * r, 50))}
              for (a, b), r in zip(bins, rates, strict=True)]  # fmt: skip
        # fmt: off
        evaluations.append({"step": step, "split": "test", "prompts": 200, "samples": 1, "accuracy": skill,
                            "interval": list(wilson(200 * skill, 200)), "by_length": by, "by_difficulty": by})
        # fmt: on
    write_jsonl(folder / "metrics.jsonl", metrics)
    write_jsonl(folder / "timings.jsonl", timings)
    write_jsonl(folder / "samples.jsonl", samples)
    write_jsonl(folder / "evaluations.jsonl", evaluations)
    return folder


def stretch(folder: Path, steps: int) -> Path:
    """The run repeated until it has so many steps: long, and quickly made."""
    tables = [pl.read_parquet(path) for path in sorted((folder / "records").iterdir())]
    for step in range(len(tables) + 1, steps + 1):
        table = tables[(step - 1) % len(tables)].with_columns(step=pl.lit(step))
        table.write_parquet(folder / "records" / f"step-{step:06d}.parquet")
    for name in ("metrics", "timings", "samples"):
        path = folder / f"{name}.jsonl"
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        by_step = [[row for row in rows if row["step"] == k + 1] for k in range(len(tables))]
        write_jsonl(path, [{**row, "step": s + 1} for s in range(steps) for row in by_step[s % len(tables)]])
    return folder
