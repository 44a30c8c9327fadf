"""The outcome of a run against its own files read by hand; and the results file."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from fspo import objectives, runs
from fspo.comparisons.cell import commit_of_package, run_cell
from fspo.comparisons.outcome import _accuracy, _curves, _health, outcome
from fspo.comparisons.plan import Cell, Plan
from fspo.comparisons.store import Store, read
from fspo.comparisons.suite import Suite, load
from fspo.config import TrainConfig
from fspo.training.loop import train


def plan(**changes: Any) -> Plan:
    smoke = load("smoke").model_dump(mode="json")
    base = smoke["base"]
    for key, value in changes.items():
        base[key] = base[key] | value if isinstance(value, dict) else value
    return Plan(Suite(**smoke))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two tasks whose clipping acts, with all of its rows computed."""
    path = tmp_path_factory.mktemp("outcome") / "run"
    both = {"task": [{"name": "sort", "n_max": 5, "letters": 4}, {"name": "brackets", "n_max": 5}], "steps": 8}
    values = plan().tuning[0].config | both
    values |= {"rollout": values["rollout"] | {"prompts": 8}, "update": values["update"] | {"all_rows": True}}
    train(TrainConfig(**values), path)
    return path


def off_policy(folder: Path) -> list[dict[str, Any]]:
    updates = defaultdict(list)
    for file in sorted((folder / "records").glob("*.parquet")):
        for row in pq.read_table(file).to_pylist():
            updates[row["step"], row["update"]].append(row)
    return [r for rows in updates.values() if any(r["log_ratio"] for r in rows) for r in rows]


def test_sums_by_length_are_those_of_the_records(folder: Path) -> None:
    found, rows = outcome(folder), off_policy(folder)
    assert found["lengths"] == sorted({r["length"] for r in rows})
    for k, length in enumerate(found["lengths"]):
        own = [r for r in rows if r["length"] == length]
        clippable = [r for r in own if r["advantage"] != 0]
        assert found["count"][k] == len(clippable)
        assert found["accepted"][k] == pytest.approx(sum(min(1, max(0, r["accepted"])) for r in clippable))
        assert found["all_count"][k] == len(own)
        assert found["total"][k] == pytest.approx(sum(r["log_ratio"] for r in own), abs=1e-12)
        assert found["square"][k] == pytest.approx(sum(r["log_ratio"] ** 2 for r in own))
    assert 0 < sum(found["accepted"]) < sum(found["count"]) < sum(found["all_count"])


def test_stages_are_those_of_the_records(folder: Path) -> None:
    found, rows = outcome(folder), off_policy(folder)
    assert [s["update"] for s in found["stages"]] == sorted({r["update"] for r in rows}) == [1, 2, 3]
    for stage in found["stages"]:
        own = [r for r in rows if r["update"] == stage["update"]]
        mu = sum(r["log_ratio"] for r in own) / sum(r["length"] for r in own)
        square = statistics.fmean((r["log_ratio"] - mu * r["length"]) ** 2 / r["length"] for r in own)
        assert (stage["staleness"], stage["count"]) == (own[0]["staleness"], len(own))
        assert stage["mu"] == pytest.approx(mu)
        assert stage["sigma"] == pytest.approx(math.sqrt(square))
        assert (stage["c_low"], stage["c_high"]) == pytest.approx((0.01, 0.01))


def test_fairness_over_other_attributes(folder: Path) -> None:
    found, rows = json.loads(outcome(folder)["attributes"])[1:], off_policy(folder)
    steps = sorted({r["step"] for r in rows})
    late = [r for r in rows if r["step"] > steps[(len(steps) - 1) // 2]]
    assert [entry["by"] for entry in found] == ["task", "difficulty"]
    by_task = {b["label"]: b for b in found[0]["own"]["bins"]}
    assert set(by_task) == {"sort", "brackets"}
    for name, b in by_task.items():
        own = [r for r in late if r["task"] == name and r["advantage"] != 0]
        assert b["count"] == len(own)
        assert b["clip_rate"] == pytest.approx(1 - statistics.fmean(r["accepted"] for r in own))
    early = [r for r in rows if r not in late]
    S, L = (np.array([r[name] for r in early]) for name in ("log_ratio", "length"))
    mu = S.sum() / L.sum()
    low, high = np.quantile((S - mu * L) / np.sqrt(L), [0.05, 0.95])
    outside = [not low <= (r["log_ratio"] - mu * r["length"]) / math.sqrt(r["length"]) <= high for r in late]
    assert found[0]["pooled"]["clip_rate"] == pytest.approx(statistics.fmean(outside))
    assert sum(b["count"] for b in found[1]["partition"]["bins"]) == len(late)


def test_bands_of_three_widths_clip_the_same_share(folder: Path) -> None:
    found = json.loads(outcome(folder)["attributes"])[0]
    rows = [r for r in off_policy(folder) if r["advantage"] != 0]
    assert found["by"] == "length"
    fspo, gspo, rloo = objectives.FSPO(), objectives.GSPO(), objectives.RLOO()
    laws = (
        ("fspo", 0.5, fspo.c_low, fspo.c_high),
        ("gspo", 1.0, -math.log1p(-gspo.clip_low), math.log1p(gspo.clip_high)),
        ("rloo", 0.0, -math.log1p(-rloo.clip_low), math.log1p(rloo.clip_high)),
    )
    for name, exponent, low, high in laws:
        assert found[name]["clip_rate"] == pytest.approx(0.1, abs=1 / len(rows))
        # the farthest tenth, on the side where clipping acts, in the default range's proportions of up and down
        far = [r["log_ratio"] / r["length"] ** exponent / (high if r["advantage"] > 0 else -low) for r in rows]
        edge = sorted(far)[-round(0.1 * len(far)) - 1]
        shortest = found[name]["bins"][0]
        limit = int(shortest["label"].split("–")[-1])
        inside = [f > edge for f, r in zip(far, rows, strict=True) if r["length"] <= limit]
        assert len(inside) == shortest["count"]
        assert statistics.fmean(inside) == pytest.approx(shortest["clip_rate"])


def test_growth_and_cosine(folder: Path) -> None:
    found = outcome(folder)
    assert len(found["h_steps"]) == len(found["h"]) == 8
    fitted = [(lo, h, hi) for lo, h, hi in zip(found["h_low"], found["h"], found["h_high"], strict=True) if h]
    assert fitted
    assert all(lo <= h <= hi for lo, h, hi in fitted)
    assert found["cosine"] == []
    runs.RunWriter(folder).append(runs.Cosine(step=2, update=1, measured=0.9, bound=0.2, bound_tight=0.5))
    measured = outcome(folder)
    (folder / "cosine.jsonl").unlink()
    names = ("cosine_steps", "cosine", "cosine_bound", "cosine_bound_full")
    assert [measured[name] for name in names] == [[2], [0.9], [0.5], [0.2]]


def test_gains_and_shares_of_the_gradient(tmp_path: Path) -> None:
    """From a run of the task `choice`, whose answers have features."""
    values = plan().tuning[0].config
    values |= {"task": {"name": "choice", "n_max": 5}, "steps": 2, "log": values["log"] | {"cosine": 1}}
    values["warmup"] = values["warmup"] | {"max_steps": 50}
    train(TrainConfig(**values | {"rollout": values["rollout"] | {"prompts": 8, "group": 8}}), tmp_path / "run")
    found = outcome(tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()]
    first, last = lines[0], lines[-1]
    assert [b["start"] for b in found["gains"]] == [b["accuracy"] for b in first["by_difficulty"]]
    assert [b["final"] for b in found["gains"]] == [b["accuracy"] for b in last["by_difficulty"]]
    assert sum(b["count"] for b in found["gains"]) == first["prompts"]
    worked = json.loads(found["features"])["worked"]
    assert worked["steps"] == [0, 1, 2]
    assert worked["values"] == [line["features"]["worked"] for line in lines]
    assert {share["step"] for share in found["gradient"]} <= {1, 2}
    for step in {share["step"] for share in found["gradient"]}:
        own = [share for share in found["gradient"] if share["step"] == step]
        assert sum(share["true"] for share in own) == pytest.approx(1)
        assert sum(share["clipped"] for share in own) == pytest.approx(1)
        assert all(a["high"] < b["low"] for a, b in itertools.pairwise(own))


def test_an_older_file_lacks_the_later_columns(tmp_path: Path) -> None:
    stored = Path(__file__).parents[2] / "results" / "width" / "results.parquet"
    rows = read(stored)
    later = ("warm_start", "norm_clipped", "gains", "features", "optimum", "gradient")
    assert all(row[name] is None for row in rows for name in later)
    old = pq.read_table(stored)
    pq.write_table(old.drop_columns([n for n in later if n in old.column_names]), tmp_path / "results.parquet")
    store = Store(tmp_path / "results.parquet")
    store.add(rows[0] | {"key": "new", "warm_start": 2})
    assert [row["warm_start"] for row in read(tmp_path / "results.parquet")[-2:]] == [None, 2]


def evaluations(*accuracy: float) -> list[runs.Evaluated]:
    def by_difficulty(*rates: float) -> list[runs.RateBin]:
        return [runs.RateBin(low=k, high=k, count=8, accuracy=a, interval=(0, 1)) for k, a in enumerate(rates)]

    return [
        runs.Evaluated(step=10 * i, split="eval", accuracy=a, by_difficulty=by_difficulty(a, a / 2))
        for i, a in enumerate(accuracy)
    ]


def test_summaries_of_the_evaluations() -> None:
    found = _accuracy(evaluations(0.2, 0.6, 0.5, 0.4), failed=False)
    assert (found["start"], found["final"], found["peak"], found["worst"]) == (0.2, 0.4, 0.6, 0.2)
    assert found["score"] == pytest.approx(0.45)
    assert found["auc"] == pytest.approx((0.4 + 0.55 + 0.45) / 3)
    assert not found["collapsed"]
    assert _accuracy(evaluations(0.2, 0.6, 0.29, 0.5), failed=False)["collapsed"]
    assert not _accuracy(evaluations(0.1, 0.6), failed=False)["collapsed"]  # what comes before the peak does not count
    assert _accuracy(evaluations(0.5), failed=True)["collapsed"]
    assert not _accuracy(evaluations(0.0, 0.0), failed=False)["collapsed"]


def test_spikes_drift_and_curves() -> None:
    norms = [1.0] * 20 + [3.1, 1.0, 2.9, 3.2] + [1.0] * 76
    metrics = [runs.Metrics(step=i + 1, length=float(i), skipped=2, grad_norm=n) for i, n in enumerate(norms)]
    found = _health([runs.Metrics(step=0, length=50.0, skipped=0), *metrics])  # a step without an update
    assert (found["spikes"], found["skipped"]) == (2, 2)
    assert _health(metrics)["length_first"] == pytest.approx(4.5)
    assert _health(metrics)["length_last"] == pytest.approx(94.5)
    early = [m.model_copy(update={"grad_norm": 9.0 if m.step == 5 else 1.0}) for m in metrics]
    assert _health(early)["spikes"] == 0
    curves = _curves(metrics)
    assert len(curves["steps"]) == len(curves["length"]) == 40
    assert curves["length"][0] == pytest.approx(1.0)  # of the first three
    assert curves["kl"] == [None] * 40


def test_a_cell_gives_a_row_and_leaves_nothing(tmp_path: Path) -> None:
    made = plan()
    cell = made.tuning[0]
    row = run_cell(cell, made.warm[str(cell.warm)], tmp_path, "abc")
    assert list(tmp_path.iterdir()) == []
    assert (row["status"], row["commit"], row["seed"], row["eval_steps"]) == ("finished", "abc", 1000, [0, 1, 2, 3])
    assert json.loads(row["config"]) == cell.config  # without the folder of the warm start
    assert json.loads(row["objective"])["c_low"] == 0.01
    store = Store(tmp_path / "results.parquet")
    store.add(row | {"suite": "smoke"})
    store.add(row | {"suite": "smoke", "key": "other"})
    back = read(tmp_path / "results.parquet")
    assert [r["key"] for r in back] == [cell.key, "other"]
    assert back == Store(tmp_path / "results.parquet").rows == store.rows
    exact = ("total", "square", "accepted", "eval_accuracy", "stages", "attributes", "auc")
    assert {name: back[0][name] for name in exact} == {name: row[name] for name in exact}
    store.put_first([back[1]])
    assert [r["key"] for r in read(tmp_path / "results.parquet")] == ["other", cell.key]


def test_a_run_without_finite_gradients_is_a_result(tmp_path: Path) -> None:
    made = plan(steps=20, update={"lr": 3e38, "max_skipped": 1})
    cell: Cell = made.test[0]
    row = run_cell(cell, made.warm[str(cell.warm)], tmp_path, "")
    assert row["status"] == "failed"
    assert row["collapsed"]
    assert row["error"].endswith("updates had no finite gradient, more than update.max_skipped = 1")
    assert row["skipped"] > 1
    assert row["eval_steps"][0] == 0
    Store(tmp_path / "results.parquet").add(row)


def test_another_file_is_not_taken_for_results(tmp_path: Path) -> None:
    path = tmp_path / "results.parquet"
    path.write_text("no table")
    with pytest.raises(ValueError, match=r"results.parquet is not a results file of this version"):
        Store(path)


def test_the_commit_is_that_of_the_checkout() -> None:
    assert len(commit_of_package().removesuffix("-dirty")) in (0, 40)
