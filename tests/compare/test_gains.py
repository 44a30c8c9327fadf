"""Gains by difficulty, speed, shares of the gradient and features, against figures by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fspo.comparisons.gains import best, feature, gains, gradient, rollouts_until
from fspo.comparisons.seed_statistics import RunGroup
from fspo.comparisons.suite_results import SuiteResults
from fspo.comparisons.views import comparison_tables
from fspo.comparisons.views.gain_views import gain_tables
from helpers.made_rows import rows, suite


def group(*runs: dict[str, Any]) -> RunGroup:
    return RunGroup("sort", "default", "fspo", [{"seed": k, "x": None} | run for k, run in enumerate(runs)])


def bins(*gained: float, counts: tuple[int, ...] = (10, 10)) -> dict[str, Any]:
    return {
        "gains": [
            {"low": float(k), "high": k + 0.5, "count": n, "start": 0.2, "final": 0.2 + g}
            for k, (g, n) in enumerate(zip(gained, counts, strict=True))
        ]
    }


def test_gains_by_bin_and_the_worst_over_the_mean() -> None:
    found = gains(group(bins(0.4, 0.2), bins(0.6, 0.2)))
    assert found is not None
    assert [b.gain.value for b in found.bins] == pytest.approx([0.5, 0.2])
    assert found.mean.value == pytest.approx(0.35)
    assert found.worst_over_mean is not None
    assert found.worst_over_mean.value == pytest.approx(0.2 / 0.35)
    uneven = gains(group(bins(0.4, 0.1, counts=(30, 10))))
    assert uneven is not None
    assert uneven.mean.value == pytest.approx(0.325)


def test_no_ratio_where_the_mean_gain_may_be_nothing() -> None:
    for runs in ((bins(-0.1, 0.1),), (bins(0.3, 0.3), bins(-0.2, -0.2)), (bins(-0.3, -0.1),)):
        found = gains(group(*runs))
        assert found is not None
        assert found.worst_over_mean is None
    other = bins(0.1, 0.2)
    other["gains"][1]["low"] = 1.25
    assert gains(group(bins(0.1, 0.2), other)) is None
    assert gains(group({"gains": None})) is None


def evaluated(*accuracy: float) -> dict[str, Any]:
    return {"eval_steps": [5 * k for k in range(len(accuracy))], "eval_accuracy": accuracy, "peak": max(accuracy)}


def test_rollouts_until_a_level() -> None:
    runs = group(evaluated(0.1, 0.3, 0.5), evaluated(0.4, 0.2, 0.6), evaluated(0.1, 0.1, 0.2))
    until, reached = rollouts_until(runs, 0.4)
    assert until is not None
    assert until.value == pytest.approx((7.5 + 0 + 10) / 3)
    assert reached == 2
    assert best([runs, group(evaluated(0.1, 0.2))]) == pytest.approx((0.5 + 0.6 + 0.2) / 3)


def shares(step: int, *clipped: float) -> list[dict[str, Any]]:
    return [
        {"step": step, "low": 10.0 * k, "high": 10.0 * k + 4, "true": 1 / len(clipped), "clipped": c}
        for k, c in enumerate(clipped)
    ]


def test_shares_of_the_gradient_are_means_over_measurements_then_seeds() -> None:
    runs = group(
        {"gradient": shares(5, 0.2, 0.8) + shares(10, 0.4, 0.6)}, {"gradient": shares(5, 0.5, 0.5) + shares(10, 1.0)},
        {"gradient": []},
    )  # fmt: skip
    found = gradient(runs)
    assert [b.clipped.value for b in found] == pytest.approx([(0.3 + 0.5) / 2, (0.7 + 0.5) / 2])
    assert [b.true.value for b in found] == pytest.approx([0.5, 0.5])
    assert [b.length for b in found] == pytest.approx([2, 12])
    assert gradient(group({"gradient": None})) == []


def described(*values: float, optimum: float | None = 1.0) -> dict[str, Any]:
    steps = [10 * k for k in range(len(values))]
    known = {} if optimum is None else {"worked": optimum}
    return {
        "features": json.dumps({"worked": {"steps": steps, "values": values}}), "optimum": json.dumps(known),
    }  # fmt: skip


def test_how_fast_a_feature_reaches_its_optimum() -> None:
    found = feature(group(described(0.5, 0.7, 1.0), described(0.0, 0.1, 0.2)), "worked")
    assert found is not None
    assert [v.value for v in found.values] == pytest.approx([0.25, 0.4, 0.6])
    assert found.reached == 1
    assert found.rollouts is not None
    # 80 % of the way from 0.5 to 1 is 0.9, two thirds of the second span; the other run never comes there.
    assert found.rollouts.value == pytest.approx((10 + 10 * 2 / 3 + 20) / 2)
    open_ended = feature(group(described(0.5, 0.7, optimum=None)), "worked")
    assert open_ended is not None
    assert open_ended.rollouts is None
    assert feature(group({"features": None, "optimum": None}), "worked") is None


def test_tables_only_of_what_was_measured() -> None:
    given = suite(("fspo", "gspo"), ("sort", "add"))
    made = rows(given, seeds=6)
    titles = [table.title for table in gain_tables(SuiteResults(made, given))]
    assert [title.split(" – ")[0] for title in titles] == [
        *["Gain in accuracy by difficulty, end minus start, points"] * 2,
        "Rollouts until 80 % of the best accuracy of any method",
        "Gradient norms",
        *["Share of the gradient by length, unclipped update → the method's own, %"] * 2,
        *["Features of held-out answers"] * 2,
    ]
    later = dict.fromkeys(("warm_start", "norm_clipped", "gains", "features", "optimum", "gradient"))
    assert gain_tables(SuiteResults([row | later for row in made], given)) == []


def test_confirming_tasks_have_tables_of_their_own() -> None:
    given = suite(("fspo", "gspo"), ("sort", "add")).model_copy(
        update={"confirm": {"copy": {}}, "hypothesis": "fspo is ahead.", "warm_starts": 3}
    )
    both = suite(("fspo", "gspo"), ("sort", "add", "copy"))
    made = rows(both, seeds=6)
    text = comparison_tables.text(made, given)
    assert "Hypothesis: fspo is ahead.\n" in text
    assert "Nothing was chosen by the confirming tasks: copy." in text
    assert "6 test seeds per method, task and setting, from 3 warm starts." in text
    assert "### Across 2 choosing tasks\n" in text
    assert "### Across 1 confirming task\n" in text
