"""The statistics of a comparison against brute force, other packages, and simulations of known truth."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fspo.comparisons import statistics
from fspo.comparisons.statistics import Estimate, RunGroup, Sample, SuiteResults, lead, mean_gain, mean_of
from fspo.comparisons.suite import Suite
from fspo.fairness import measure
from helpers.made_rows import rows, suite
from helpers.simulated_answers import known


def runs(task: str, values: Any, starts: int = 1, method: str = "m") -> RunGroup:
    """Runs that start from 0 and so gain what they end with; seed s has the start s modulo `starts`."""
    made = [{"seed": k, "warm_start": k % starts, "start": 0.0, "final": v} for k, v in enumerate(values)]
    return RunGroup(task, "default", method, made)


def group(*made: dict[str, Any]) -> RunGroup:
    return RunGroup("sort", "default", "fspo", [{"seed": k, "warm_start": 0} | row for k, row in enumerate(made)])


def covers(interval: Estimate | None, truth: float) -> bool:
    interval = known(interval)
    return known(interval.low) <= truth <= known(interval.high)


# --- means ------------------------------------------------------------------------------------------------------------


def test_the_interval_of_a_mean_is_students_over_starts() -> None:
    x = np.random.default_rng(3).normal(size=12)
    assert mean_of(Sample(x, tuple(range(12)))) == pytest.approx(
        (x.mean(), *stats.t.interval(0.95, 11, x.mean(), stats.sem(x)))
    )
    by_start = x.reshape(4, 3).mean(1)  # three seeds of each of four starts
    assert mean_of(Sample(x, tuple(np.repeat(range(4), 3)))) == pytest.approx(
        (x.mean(), *stats.t.interval(0.95, 3, by_start.mean(), stats.sem(by_start)))
    )
    assert mean_of(Sample(x, (5,) * 12)) == Estimate(float(x.mean()))
    assert mean_of(Sample(np.array([]), ())) is None


def test_tasks_have_equal_weight_and_welchs_interval() -> None:
    x, y = np.array([0.1, 0.3, 0.2]), np.array([1.0, 2.0, 4.0, 3.0, 0.5])
    both = mean_of(Sample(x, (0, 1, 2)), Sample(y, (0, 1, 2, 3, 4)))
    test = stats.ttest_ind(x, -y, equal_var=False).confidence_interval()  # of the sum of the two means
    assert both == pytest.approx(((x.mean() + y.mean()) / 2, test.low / 2, test.high / 2))


def test_one_start_is_resampled_by_seed() -> None:
    assert runs("t", [1.0, 2.0, 3.0]).units == (0, 1, 2)
    assert runs("t", [1.0, 2.0, 3.0, 4.0], starts=2).units == (0, 1, 0, 1)
    drawn = statistics.weights((0, 1, 0, 1))
    assert (drawn[:, 0] == drawn[:, 2]).all(), "the seeds of a start are drawn together"
    assert (drawn[:, :2].sum(1) == 2).all()


def test_gains() -> None:
    assert statistics.gain({"start": 0.2, "final": 0.6}) == pytest.approx(0.5)
    assert statistics.gain({"start": 1.0, "final": 1.0}) is None
    ends = [{"start": 0.5, "final": 0.75}, {"start": 0.9, "final": 0.0}, {"start": 0.0, "final": 0.25}]
    assert statistics.weaker_end({"gains": ends}) == pytest.approx(0.25)
    assert statistics.weaker_end({"gains": None}) is None
    mean = known(mean_gain([runs("a", [0.1, 0.3]), runs("b", [0.5, 0.7, 0.9])]))
    assert mean.value == pytest.approx((0.2 + 0.7) / 2)


def test_a_lead_is_by_pairs_of_task_and_seed() -> None:
    ours, theirs = runs("t", [0.1, 0.2, 0.3]), runs("t", [0.0, 0.5])
    result = known(lead([ours], [theirs]))
    assert (result.pairs, result.won) == (2, 1)
    assert result.difference.value == pytest.approx(-0.1)
    assert lead([ours], [runs("other", [0.1])]) is None
    assert known(lead([ours], [ours])).won == 1.5  # ties by half


def test_gains_by_bin_and_features() -> None:
    def bins(*gained: float) -> dict[str, Any]:
        limits = [{"low": float(k), "high": k + 0.5, "count": 10, "start": 0.2} for k in range(len(gained))]
        return {"gains": [b | {"final": 0.2 + g} for b, g in zip(limits, gained, strict=True)]}

    assert [value.value for *_, value in statistics.gains(group(bins(0.4, 0.2), bins(0.6, 0.2)))] == pytest.approx(
        [0.5, 0.2]
    )
    for other in (bins(0.6), {"gains": None}):
        assert statistics.gains(group(bins(0.4, 0.2), other)) == statistics.gains(group(other, bins(0.4, 0.2))) == []
    described = {"features": '{"worked": {"steps": [0, 10], "values": [0.5, 0.7]}}'}
    both = group(described, described | {"features": None})
    assert statistics.features([both]) == ["worked"]
    assert [statistics.feature(both, "worked", at) for at in (0, -1)] == [Estimate(0.5), Estimate(0.7)]
    assert statistics.feature(group({"features": None}), "worked", 0) is None


# --- coverage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("starts", "seeds"), [(9, 1), (3, 3), (5, 2)])
def test_intervals_over_starts_cover_and_intervals_over_seeds_would_not(starts: int, seeds: int) -> None:
    """Three tasks whose starts have luck of their own, in the gain and in the lead over a method; nominal 95 %."""
    rng, trials = np.random.default_rng(4), 500
    hits = np.zeros(3)
    for _ in range(trials):
        ours, theirs, alone = [], [], []
        for k in range(3):
            luck = rng.normal(0, 1 + k, (2, starts))  # of each start, for either method; tasks have different scales
            x, y = (np.tile(own, seeds) + rng.normal(0, 1, starts * seeds) for own in luck)
            ours.append(runs(f"t{k}", x, starts))
            theirs.append(runs(f"t{k}", y, starts))
            alone.append(Sample(x, tuple(range(len(x)))))
        hits += [
            covers(mean_gain(ours), 0),
            covers(known(lead(ours, theirs)).difference, 0),
            covers(mean_of(*alone), 0),
        ]
    noise = 3 * math.sqrt(0.95 * 0.05 / trials)
    assert min(hits[:2]) / trials >= 0.95 - noise
    if seeds > 1:
        assert hits[2] / trials < 0.95 - noise


@pytest.mark.parametrize("slope", [0.0, 0.002])
def test_intervals_of_lre_and_flatness_cover_a_flat_and_a_tilted_rule(slope: float) -> None:
    """Acceptance 0.9 - slope L, shifted for each seed: the intervals are bounds, and cover at least nominally."""
    rng, trials, hits = np.random.default_rng(6), 200, np.zeros(3)
    L = np.arange(6) * 10.0 + 5
    rate = 0.9 - slope * L
    truth = (rate.max() / rate.mean() - 1, 1 - rate.min() / rate.mean())
    for _ in range(trials):
        made: list[dict[str, Any]] = []
        for _ in range(8):
            accepted = rng.binomial(200, np.clip(rate + rng.normal(0, 0.02), 0, 1))
            made.append({"lengths": L.tolist(), "count": [200] * 6, "accepted": accepted.tolist()})
        measured = known(group(*made).clipping)
        hits += [covers(measured.lre, max(truth)), covers(measured.flatness, rate.max() - rate.min()),
                 covers(measured.clip_rate, 1 - rate.mean())]  # fmt: skip
    assert min(hits) / trials >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / trials)


# --- groups, curves, failures -----------------------------------------------------------------------------------------


SUITE = suite(("fspo", "gspo", "rloo"), ("sort", "add"))
ROWS = rows(SUITE, seeds=4, fail={("rloo", 1)})


def everything(made: list[dict[str, Any]], given: Suite) -> list[Any]:
    results = SuiteResults(made, given)
    of = {method: results.of(method, "default") for method in given.methods}
    clipped = [(known(g.clipping).lre, known(g.clipping).flatness) for g in results.groups]
    curves = [(g.mean("final"), statistics.accuracy_curve(g)) for g in results.groups]
    return [clipped, curves, [(mean_gain(runs), lead(of[given.reference], runs)) for runs in of.values()]]


def test_names_and_the_order_of_rows_do_not_matter() -> None:
    names = dict(zip(SUITE.methods, ("zz", "<b>", "a, b"), strict=True))
    renamed = [row | {"method": names[row["method"]]} for row in reversed(ROWS)]
    assert everything(renamed, suite(tuple(names.values()), tuple(SUITE.tasks))) == everything(ROWS, SUITE)


def groups(made: list[dict[str, Any]], given: Suite) -> list[RunGroup]:
    tuned = [row | {"phase": "tune", "final": 0.0} for row in made]  # only tests count
    return SuiteResults(made + tuned, given).groups


def test_a_failed_run_counts_with_its_last_evaluation() -> None:
    failing = next(g for g in groups(ROWS, SUITE) if g.method == "rloo")
    finals = [row["final"] for row in failing.rows]
    assert sum(row["collapsed"] for row in failing.rows) == 1
    assert 0.02 in finals
    steps, held = statistics.accuracy_curve(failing)
    assert known(held[-1]).value == pytest.approx(np.mean(finals))
    assert steps == failing.rows[0]["eval_steps"]


# --- clipping ---------------------------------------------------------------------------------------------------------


def test_pooled_fairness_is_that_of_all_responses() -> None:
    pooled = next(g for g in groups(ROWS, SUITE) if g.method == "gspo")
    lengths: list[int] = []
    accepted: list[float] = []
    for row in pooled.rows:
        for length, n, kept in zip(row["lengths"], row["count"], row["accepted"], strict=True):
            lengths += [length] * int(n)
            accepted += [1.0] * round(kept) + [0.0] * round(n - kept)
    want = measure(lengths, accepted, statistics.BINS)
    measured = known(pooled.clipping)
    for got, bin in zip(measured.report.bins, want.bins, strict=True):
        assert (got.label, got.count) == (bin.label, bin.count)
        assert (got.clip_rate, *got.interval) == pytest.approx((bin.clip_rate, *bin.interval))
    assert measured.lre.value == pytest.approx(want.lre)
    assert measured.flatness.value == pytest.approx(want.flatness)
    assert measured.clip_rate.value == pytest.approx(want.clip_rate)
    alone = known(RunGroup("sort", "default", "gspo", pooled.rows[:1]).clipping)  # one seed has no interval
    assert alone.lre.low is alone.flatness.high is alone.clip_rate.low is None
