"""Runs of simulated answers, S ~ Normal(mu L, sigma^2 L), written to disk as every engine writes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fspo import objectives, ratios
from fspo.config import TrainConfig
from fspo.fairness import measure, wilson
from fspo.objectives import Responses
from fspo.report.report_run import RowSummary, load
from fspo.runs import ClipBin, Evaluated, Metrics, RateBin, RunWriter, Sample, Timing, rows
from fspo.runs.schema import Line

NASTY = '<script>alert("x")</script> \'"&<b> \x00\x1b[31m\x07 \ud800 \u202e end'
WARNING = "{} % of the answers were truncated <b>"
OBJECTIVES: dict[str, dict[str, Any]] = {
    "fspo": {"name": "fspo", "c_low": 0.03, "c_high": 0.03, "drift": "kl"},
    "gspo": {"name": "gspo", "clip_low": 3e-4, "clip_high": 4e-4},
}
UPDATES = 4
LONGEST = 128


def make_run(
    folder: Path, steps: int = 12, answers: int = 64, rule: str | dict[str, Any] = "fspo", seed: int = 0
) -> Path:
    """A run folder. `rule`, a name in OBJECTIVES or an objective's configuration, decides what is clipped."""
    rng = np.random.default_rng(seed)
    objective = OBJECTIVES[rule] if isinstance(rule, str) else rule
    config = TrainConfig(
        objective=objective, steps=steps, seed=seed, task={"name": "sort", "n_min": 4, "n_max": 40},
        log={"wandb": "<img src=http://example.com/x.png>"},
    )  # fmt: skip
    writer = RunWriter(folder)
    writer.describe(config.model_dump(mode="json"), engine="local")
    for step in range(1, steps + 1):
        _write_step(writer, step, steps, answers, objective, rng)
    for step in range(0, steps + 1, max(1, steps // 6)):
        _write_evaluation(writer, step, steps)
    return folder


def _skill(step: int, steps: int) -> float:
    return float(0.25 + 0.45 * (1 - np.exp(-2.5 * step / steps)))


def _write_step(
    writer: RunWriter, step: int, steps: int, answers: int, objective: dict[str, Any], rng: np.random.Generator
) -> None:
    length = np.clip(rng.lognormal(3.2, 0.6, answers).round(), 4, LONGEST)
    reward = (rng.random(answers) < _skill(step, steps) * np.exp(-length / 120)).astype(float)
    advantage = reward - reward.mean()
    table: dict[str, list[Any]] = {name: [] for name in rows.COLUMNS}
    drifts = []
    for update in range(UPDATES):
        sigma = 0.02 * np.sqrt(update)
        S = rng.normal(-(sigma**2) / 2 * length, sigma * np.sqrt(length)) if update else np.zeros(answers)
        drifts.append(ratios.drift(S, length))
        kept = objectives.accepted(objectives.get(**objective), Responses(S, length, np.sign(advantage)))
        columns: dict[str, Any] = {
            "step": [step] * answers, "update": [update] * answers, "staleness": [update] * answers,
            "off_policy": [ratios.off_policy(S, length)] * answers, "index": list(range(answers)),
            "task": ["sort"] * answers, "length": length.astype(int).tolist(),
            "truncated": (length >= LONGEST).tolist(), "reward": reward.tolist(), "advantage": advantage.tolist(),
            "log_ratio": S.tolist(), "accepted": kept.tolist(), "difficulty": (length / LONGEST).tolist(),
            "attributes": ["{}"] * answers, "mismatch": [None] * answers,
        }  # fmt: skip
        for name, values in columns.items():
            table[name] += values
    writer.rows(step, table)
    moved = np.array(table["off_policy"])
    L, S, accepted = (np.array(table[name], np.float64)[moved] for name in ("length", "log_ratio", "accepted"))
    fairness = measure(L, accepted, 6)
    band = {"c_low": 0.03, "c_high": 0.03, "drift": float(np.mean(drifts))} if objective["name"] == "fspo" else {}
    writer.append(
        Metrics(
            step=step, reward=reward.mean(), accuracy_train=float((reward == 1).mean()), length=length.mean(),
            truncated=float((length >= LONGEST).mean()), groups=8, groups_without_variance=1, groups_single=0,
            unscored=0, entropy=1.2 * np.exp(-step / steps) + 0.02 * rng.normal(), updates=UPDATES, on_policy=False,
            skipped=0, lr=1e-4, loss=-0.01, grad_norm=rng.lognormal(0, 0.4), capped=0.0,
            kl=2e-4 * (1 + rng.random()), mu=ratios.drift(S, L), sigma=0.02,
            ess=0.9 - 0.1 * rng.random(), **band, clip_rate=fairness.clip_rate, lre=fairness.lre,
            lre_interval=fairness.lre_interval, flatness=fairness.flatness,
            clip_by_length=[
                ClipBin(low=b.low, high=b.high, count=b.count, clip_rate=b.clip_rate, interval=b.clip_interval)
                for b in fairness.bins
            ],
            warnings={"truncated": WARNING.format(step)} if step % 5 == 0 else {},
        )
    )  # fmt: skip
    writer.append(
        Timing(step=step, rollout=0.4, update=0.9, total=1.35 + 0.1 * rng.random(),
               tokens_per_second=5200 + 300 * rng.normal())
    )  # fmt: skip
    for k in range(3):
        text = NASTY if k == 0 else "abcde fghij"
        writer.append(
            Sample(step=step, prompt=f"sort: {text}", completion=text, reward=float(k == 1), length=11,
                   truncated=k == 2, task="sort")
        )  # fmt: skip


def _write_evaluation(writer: RunWriter, step: int, steps: int) -> None:
    skill = _skill(step, steps)
    bins = [(4, 12, 1.5), (13, 21, 1.1), (22, 30, 0.8), (31, 40, 0.4)]

    def by(scale: float) -> list[RateBin]:
        rates = [(low, high, min(1.0, skill * factor)) for low, high, factor in bins]
        return [
            RateBin(low=low * scale, high=high * scale, count=50, accuracy=rate, interval=wilson(50 * rate, 50))
            for low, high, rate in rates
        ]

    writer.append(
        Evaluated(step=step, split="eval", prompts=200, samples=1, accuracy=skill, interval=wilson(200 * skill, 200),
                  by_length=by(1), by_difficulty=by(1 / 40))
    )  # fmt: skip


def rewrite(folder: Path, lines: Sequence[Line]) -> None:
    """These lines, all of one kind, in the place of those of the run."""
    writer = RunWriter(folder)
    writer.path(type(lines[0])).unlink(missing_ok=True)
    for line in lines:
        writer.append(line)


def change_rows(folder: Path, **columns: pl.Expr) -> Path:
    """The run with other columns in its rows, of the same types."""
    for path in rows.files(folder):
        table = pl.read_parquet(path)
        table.with_columns(**columns).cast(table.schema).write_parquet(path)
    return folder


def summary_of(folder: Path) -> RowSummary:
    """Its rows as a page sees them."""
    summary = load(folder).rows
    assert summary is not None
    return summary
