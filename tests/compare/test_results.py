"""The outcome of a run against its own files read by hand; and the results file."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fspo import runs
from fspo.comparisons.plan import Plan, train_config
from fspo.comparisons.results import Store, _accuracy, _curves, _health, differences, outcome, read
from fspo.comparisons.run import commit_of_package, run_cell
from fspo.comparisons.suite import Suite, load, merge
from fspo.training.loop import train


def plan(**changes: Any) -> Plan:
    smoke = load("smoke").model_dump(mode="json")
    base = smoke["base"]
    for key, value in changes.items():
        base[key] = base[key] | value if isinstance(value, dict) else value
    return Plan(Suite(**smoke))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose clipping acts, with all of its rows computed; the answers of one of its tasks have features."""
    path = tmp_path_factory.mktemp("outcome") / "run"
    both = {"task": [{"name": "sort", "n_max": 5, "letters": 4}, {"name": "choice", "n_max": 5}], "steps": 8}
    values = merge(plan().tuning[0].config | both, {"rollout": {"prompts": 8}, "update": {"all_rows": True}})
    train(train_config(values), path)
    return path


def off_policy(folder: Path) -> list[dict[str, Any]]:
    updates = defaultdict(list)
    for file in sorted((folder / "records").glob("*.parquet")):
        for row in pq.read_table(file).to_pylist():
            updates[row["step"], row["update"]].append(row)
    return [r for rows in updates.values() if any(r["log_ratio"] for r in rows) for r in rows]


def test_sums_by_length_are_those_of_the_records(folder: Path) -> None:
    measured, rows = outcome(folder), off_policy(folder)
    assert measured["lengths"] == sorted({r["length"] for r in rows})
    for k, length in enumerate(measured["lengths"]):
        clippable = [r for r in rows if r["length"] == length and r["advantage"] != 0]
        assert measured["count"][k] == len(clippable)
        assert measured["accepted"][k] == pytest.approx(sum(min(1, max(0, r["accepted"])) for r in clippable))
    assert 0 < sum(measured["accepted"]) < sum(measured["count"]) < len(rows)


def test_cosines_gains_and_features(folder: Path) -> None:
    assert outcome(folder)["cosine"] == []
    runs.RunWriter(folder).append(runs.Cosine(step=2, update=1, measured=0.9, bound=0.2, bound_tight=0.5))
    measured = outcome(folder)
    (folder / "cosine.jsonl").unlink()
    names = ("cosine_steps", "cosine", "cosine_bound", "cosine_bound_full")
    assert [measured[name] for name in names] == [[2], [0.9], [0.5], [0.2]]
    lines = [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]
    first, last = lines[0], lines[-1]
    assert [b["start"] for b in measured["gains"]] == [b["accuracy"] for b in first["by_difficulty"]]
    assert [b["final"] for b in measured["gains"]] == [b["accuracy"] for b in last["by_difficulty"]]
    assert sum(b["count"] for b in measured["gains"]) == first["prompts"]
    worked = json.loads(measured["features"])["worked"]
    assert worked == {"steps": list(range(9)), "values": [line["features"]["worked"] for line in lines]}


def evaluations(*accuracy: float) -> list[runs.Evaluated]:
    def by_difficulty(*rates: float) -> list[runs.RateBin]:
        return [runs.RateBin(low=k, high=k, count=8, accuracy=a, interval=(0, 1)) for k, a in enumerate(rates)]

    return [
        runs.Evaluated(step=10 * i, split="eval", accuracy=a, by_difficulty=by_difficulty(a, a / 2))
        for i, a in enumerate(accuracy)
    ]


def test_summaries_of_the_evaluations() -> None:
    measured = _accuracy(evaluations(0.2, 0.6, 0.5, 0.4), failed=False)
    assert (measured["start"], measured["final"], measured["peak"], measured["worst"]) == (0.2, 0.4, 0.6, 0.2)
    assert measured["score"] == pytest.approx(0.45)
    assert measured["auc"] == pytest.approx((0.4 + 0.55 + 0.45) / 3)
    assert not measured["collapsed"]
    assert _accuracy(evaluations(0.2, 0.6, 0.29, 0.5), failed=False)["collapsed"]
    assert not _accuracy(evaluations(0.1, 0.6), failed=False)["collapsed"]  # what comes before the peak does not count
    assert _accuracy(evaluations(0.5), failed=True)["collapsed"]
    assert not _accuracy(evaluations(0.0, 0.0), failed=False)["collapsed"]


def test_spikes_drift_and_curves() -> None:
    norms = [1.0] * 20 + [3.1, 1.0, 2.9, 3.2] + [1.0] * 76
    metrics = [runs.Metrics(step=i + 1, length=float(i), skipped=2, grad_norm=n) for i, n in enumerate(norms)]
    measured = _health([runs.Metrics(step=0, length=50.0, skipped=0), *metrics])  # a step without an update
    assert (measured["spikes"], measured["skipped"]) == (2, 2)
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
    row = run_cell(cell, made.warm_of(cell), tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert (row["status"], row["seed"], row["eval_steps"]) == ("finished", 1000, [0, 1, 2, 3])
    assert row["commit"] == commit_of_package()
    assert json.loads(row["config"]) == cell.config  # without the folder of the warm start
    assert json.loads(row["objective"])["c_low"] == 0.01
    store = Store(tmp_path / "results.parquet")
    store.add(row | {"suite": "smoke"})
    other = made.tuning[1]
    store.add(row | {"suite": "smoke", "key": other.key, "config": json.dumps(other.config)})
    back = read(tmp_path / "results.parquet")
    assert [r["key"] for r in back] == [cell.key, other.key]
    assert back == Store(tmp_path / "results.parquet").rows == store.rows
    exact = ("accepted", "eval_accuracy", "gains", "features", "auc")
    assert {name: back[0][name] for name in exact} == {name: row[name] for name in exact}
    store.put_first([back[1]])
    assert [r["key"] for r in read(tmp_path / "results.parquet")] == [other.key, cell.key]
    assert differences(back[0], back[1] | {"seconds": 0.0}) == []
    moved = back[0] | {"auc": back[0]["auc"] * 1.5, "accepted": back[0]["accepted"][1:]}
    assert differences(back[0], moved) == ["accepted", "auc"]
    assert differences(back[0] | {"auc": float("nan")}, back[0] | {"auc": float("nan")}) == []


def test_a_run_without_finite_gradients_is_a_result(tmp_path: Path) -> None:
    made = plan(steps=20, update={"lr": 3e38, "max_skipped": 1})
    row = run_cell(made.test[0], made.warm_of(made.test[0]), tmp_path)
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
