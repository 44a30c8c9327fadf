"""The statistics of a comparison against brute force, other packages, and simulations of known truth."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fspo import objectives
from fspo.comparisons import pooled_clipping, seed_statistics
from fspo.comparisons.outcome import BINS
from fspo.comparisons.seed_statistics import (
    Estimate,
    Improvement,
    RunGroup,
    curve,
    estimate,
    improvement,
    iqm,
    mean_of,
    summary,
)
from fspo.comparisons.suite import Suite
from fspo.comparisons.suite_results import SuiteResults
from fspo.fairness import measure, scaling_law
from fspo.fairness.scaling import fit_of_sums
from helpers.made_rows import rows, suite


def runs(task: str, values: Any, method: str = "m") -> RunGroup:
    return RunGroup(task, "default", method, [{"seed": k, "final": v} for k, v in enumerate(values)])


def covers(found: Estimate | None, truth: float) -> bool:
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    return found.low <= truth <= found.high


def improved(reference: Sequence[RunGroup], other: Sequence[RunGroup]) -> Improvement:
    found = improvement(reference, other)
    assert found is not None
    return found


def clipped(group: RunGroup) -> pooled_clipping.Clipping:
    found = pooled_clipping.clipping(group)
    assert found is not None
    return found


# --- points -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tasks", "seeds"), [(1, 8), (3, 8), (4, 5), (1, 1), (2, 2)])
def test_the_interquartile_mean_is_scipys(tasks: int, seeds: int) -> None:
    X = np.random.default_rng(0).normal(size=(tasks, seeds))
    found = iqm([runs(f"t{k}", x) for k, x in enumerate(X)])
    assert found is not None
    assert found.value == pytest.approx(stats.trim_mean(X.ravel(), 0.25))
    assert (found.low is None) == (seeds == 1)


@pytest.mark.parametrize("rounded", [False, True])
def test_the_probability_of_improvement_is_mann_whitneys(rounded: bool) -> None:
    rng = np.random.default_rng(1)
    X, Y = rng.normal(0.5, 1, (3, 8)), rng.normal(0, 1, (3, 8))
    if rounded:  # ties
        X, Y = X.round(), Y.round()
    want = [stats.mannwhitneyu(x, y).statistic / 64 for x, y in zip(X, Y, strict=True)]
    ours, theirs = ([runs(f"t{k}", v[k]) for k in range(3)] for v in (X, Y))
    found = improved(ours, theirs)
    assert found.probability.value == pytest.approx(np.mean(want))
    assert found.difference.value == pytest.approx((X - Y).mean())
    assert found.share == pytest.approx(np.mean((X > Y) + 0.5 * (X == Y)))
    assert found.pairs == 24


def test_the_draws_are_those_of_a_loop_and_paired() -> None:
    rng = np.random.default_rng(2)
    X, Y = rng.normal(0.5, 1, (2, 6)), rng.normal(0, 1, (2, 6))
    ours, theirs = ([runs(f"t{k}", v[k]) for k in range(2)] for v in (X, Y))
    means, gaps, wins = [], [], []
    for d in range(seed_statistics.DRAWS):
        taken = [seed_statistics.resampled(6, k)[d] for k in range(2)]
        x, y = ([v[k][taken[k]] for k in range(2)] for v in (X, Y))
        means.append(stats.trim_mean(np.concatenate(x), 0.25))
        gaps.append(np.mean([(a - b).mean() for a, b in zip(x, y, strict=True)]))
        wins.append(np.mean([np.mean(a[:, None] > b[None, :]) for a, b in zip(x, y, strict=True)]))
    found = improved(ours, theirs)
    for got, draws in ((iqm(ours), means), (found.difference, gaps), (found.probability, wins)):
        assert got is not None
        want = estimate(got.value, np.array(draws), [6, 6])
        assert (got.low, got.high) == pytest.approx((want.low, want.high))


def test_a_mean_of_normal_values_gets_students_interval() -> None:
    x = np.random.default_rng(3).normal(size=12)
    low, high = stats.t.interval(0.95, 11, x.mean(), stats.sem(x))
    found = mean_of(x)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.15 * (high - low))


def test_seeds_that_only_one_has_are_left_out_of_pairs() -> None:
    ours, theirs = runs("t", [1.0, 2.0, 3.0]), runs("t", [0.0, 5.0])
    found = improved([ours], [theirs])
    assert found.pairs == 2
    assert found.difference.value == pytest.approx(-1)
    assert improvement([ours], [runs("other", [1.0])]) is None


def test_a_method_that_always_wins_is_not_certain_to() -> None:
    found = improved([runs("t", np.arange(8) + 10.0)], [runs("t", np.arange(8.0))])
    assert found.probability.value == 1
    assert found.probability.high == pytest.approx(1)
    assert found.probability.low == pytest.approx(stats.binomtest(8, 8).proportion_ci(method="wilson").low)


# --- coverage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["normal", "skewed"])
def test_intervals_of_means_and_interquartile_means_cover(kind: str) -> None:
    """Eight seeds, nominal 95 %: plain percentile intervals cover about 90 %, these are within noise for normal values.

    Exponential values, far more skewed than accuracies, are covered less often, as by Student's interval.
    """
    rng, trials = np.random.default_rng(4), 400
    draw = rng.standard_normal if kind == "normal" else rng.standard_exponential
    truth = 0.0 if kind == "normal" else 1.0
    middle = 0.0 if kind == "normal" else float(np.mean(np.sort(-np.log1p(-(np.arange(4000) + 0.5) / 4000))[1000:3000]))
    hits = np.zeros(4)
    for _ in range(trials):
        X, Y = draw((3, 8)), draw((3, 8))
        ours, theirs = ([runs(f"t{k}", v[k]) for k in range(3)] for v in (X, Y))
        better = improved(ours, theirs)
        hits += [covers(mean_of(X[0]), truth), covers(iqm(ours), middle), covers(better.difference, 0.0),
                 covers(better.probability, 0.5)]  # fmt: skip
    mean, inter, gap, probability = hits / trials
    noise = 3 * math.sqrt(0.95 * 0.05 / trials)
    assert mean >= (0.95 - noise if kind == "normal" else 0.85)
    assert min(inter, gap, probability) >= 0.95 - noise


def test_intervals_of_a_likely_improvement_cover() -> None:
    """Near 1 few of 8 seeds disagree, and a bootstrap covers less: at least 90 % at every truth."""
    rng, trials = np.random.default_rng(5), 300
    for shift in (1.2, 2.0, 3.0):
        truth = stats.norm.cdf(shift / math.sqrt(2))
        hits = 0
        for _ in range(trials):
            better = improved([runs("t", rng.normal(shift, 1, 8))], [runs("t", rng.normal(0, 1, 8))])
            hits += covers(better.probability, truth)
        assert hits / trials >= 0.87  # 90 % less three standard errors of 300 trials


@pytest.mark.parametrize("slope", [0.0, 0.002])
def test_intervals_of_lre_and_flatness_cover_a_flat_and_a_tilted_rule(slope: float) -> None:
    """Acceptance 0.9 - slope L, shifted for each seed: the intervals are bounds, and cover at least nominally."""
    rng, trials, hits = np.random.default_rng(6), 200, np.zeros(3)
    L = np.repeat(np.arange(6) * 10.0 + 5, 1)
    rate = 0.9 - slope * L
    truth = (rate.max() / rate.mean() - 1, 1 - rate.min() / rate.mean())
    for _ in range(trials):
        made: list[dict[str, Any]] = []
        for seed in range(8):
            accepted = rng.binomial(200, np.clip(rate + rng.normal(0, 0.02), 0, 1))
            made.append({"seed": seed, "lengths": L, "count": np.full(6, 200), "accepted": accepted})
        rows = [{k: v if isinstance(v, int) else v.tolist() for k, v in row.items()} for row in made]
        found = clipped(RunGroup("t", "default", "m", rows))
        hits += [covers(found.lre, max(truth)), covers(found.flatness, rate.max() - rate.min()),
                 covers(found.clip_rate, 1 - rate.mean())]  # fmt: skip
    lre, flatness, clip = hits / trials
    assert min(lre, flatness) >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / trials)
    assert clip >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / trials)


# --- invariance -------------------------------------------------------------------------------------------------------

SUITE = suite(("fspo", "gspo", "rloo"), ("sort", "add"))
ROWS = rows(SUITE, seeds=4, fail={("rloo", 1)})


def everything(found: list[dict[str, Any]], given: Suite) -> list[list[Any]]:
    results = SuiteResults(found, given)
    reference = results.of(given.reference, "default")
    return [
        [summary(g), clipped(g).lre, clipped(g).flatness, curve(g, "eval_steps", "eval_accuracy")]
        for g in results.groups
    ] + [[iqm(results.of(m, "default")), improvement(reference, results.of(m, "default"))] for m in given.methods]


@settings(max_examples=10, deadline=None)
@given(st.permutations(range(len(ROWS))))
def test_the_order_of_rows_does_not_matter(order: list[int]) -> None:
    assert everything([ROWS[k] for k in order], SUITE) == everything(ROWS, SUITE)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.text(min_size=1), min_size=3, max_size=3, unique=True), st.randoms())
def test_names_do_not_matter(names: list[str], random: Random) -> None:
    methods = dict(zip(SUITE.methods, names, strict=True))
    renamed = [row | {"method": methods[row["method"]]} for row in ROWS]
    random.shuffle(renamed)
    given = suite(tuple(names), tuple(SUITE.tasks))
    assert everything(renamed, given) == everything(ROWS, SUITE)


# --- groups, curves, failures -----------------------------------------------------------------------------------------


def groups(found: list[dict[str, Any]], given: Suite) -> list[RunGroup]:
    return SuiteResults(found, given).groups


def test_only_tests_count_and_trials_are_apart_where_all_are_wanted() -> None:
    tuned = [row | {"phase": "tune", "final": 0.0} for row in ROWS]
    assert [len(g.rows) for g in groups(ROWS + tuned, SUITE)] == [4] * 6
    swept = suite(("fspo", "gspo"), ("sort",), trials=[0.01, 0.1])
    found = groups(rows(swept, seeds=2), swept)
    assert [(g.label, g.trial, len(g.rows)) for g in found] == [
        ("fspo 0.01", 0, 2), ("fspo 0.1", 1, 2), ("gspo 0.01", 0, 2), ("gspo 0.1", 1, 2)
    ]  # fmt: skip


def test_a_failed_run_counts_with_its_last_evaluation() -> None:
    group = next(g for g in groups(ROWS, SUITE) if g.method == "rloo")
    s = summary(group)
    assert (s.failed, s.collapsed, s.seeds) == (1, 1, 4)
    finals = [row["final"] for row in group.rows]
    assert s.final is not None
    assert s.final.value == pytest.approx(np.mean(finals))
    assert 0.02 in finals
    steps, held = curve(group, "eval_steps", "eval_accuracy", hold=True)
    assert held[-1].value == pytest.approx(np.mean(finals))
    _, survivors = curve(group, "eval_steps", "eval_accuracy")
    assert survivors[-1].value > held[-1].value + 0.1
    assert steps == group.rows[0]["eval_steps"]


def test_one_seed_has_no_interval() -> None:
    group = groups(rows(SUITE, seeds=1), SUITE)[0]
    final, fitted, found = summary(group).final, pooled_clipping.law(group), clipped(group)
    assert final is not None
    assert fitted is not None
    assert final.low is fitted.exponent.low is found.lre.low is found.flatness.high is found.clip_rate.low is None


# --- clipping ---------------------------------------------------------------------------------------------------------


def test_pooled_fairness_is_that_of_all_responses() -> None:
    group = next(g for g in groups(ROWS, SUITE) if g.method == "gspo")
    lengths: list[int] = []
    accepted: list[float] = []
    for row in group.rows:
        for length, n, kept in zip(row["lengths"], row["count"], row["accepted"], strict=True):
            lengths += [length] * int(n)
            accepted += [1.0] * round(kept) + [0.0] * round(n - kept)
    want = measure(lengths, accepted, BINS)
    found = clipped(group)
    for got, bin in zip(found.report.bins, want.bins, strict=True):
        assert (got.label, got.count) == (bin.label, bin.count)
        assert (got.clip_rate, *got.interval) == pytest.approx((bin.clip_rate, *bin.interval))
    assert found.lre.value == pytest.approx(want.lre)
    assert found.flatness.value == pytest.approx(want.flatness)
    assert found.clip_rate.value == pytest.approx(want.clip_rate)


def test_the_law_of_sums_is_that_of_all_responses_and_every_draw_is_fitted_by_itself() -> None:
    rng = np.random.default_rng(7)
    made: list[dict[str, Any]] = []
    responses = []
    for seed in range(5):
        L = rng.integers(4, 100, 400).astype(float)
        S = rng.normal(-0.001 * L, 0.02 * L**0.6)
        responses.append((S, L))
        lengths, index = np.unique(L, return_inverse=True)
        sums = {"all_count": np.bincount(index), "total": np.bincount(index, S), "square": np.bincount(index, S * S)}
        made.append({"seed": seed, "lengths": lengths.tolist(), **{k: v.tolist() for k, v in sums.items()}})
    found = pooled_clipping.law(RunGroup("t", "default", "m", made))
    assert found is not None
    want = scaling_law(*(np.concatenate(column) for column in zip(*responses, strict=True)))
    assert found.exponent.value == pytest.approx(want.exponent)
    assert found.mu.value == pytest.approx(want.mu)
    assert found.sigma.value == pytest.approx(want.scale)
    assert covers(found.exponent, 0.6)
    every = np.unique(np.concatenate([L for _, L in responses]))
    table = np.zeros((3, 5, len(every)))
    for k, row in enumerate(made):
        table[:, k, np.searchsorted(every, row["lengths"])] = [row["all_count"], row["total"], row["square"]]
    together = np.stack(fit_of_sums(every, *table))
    alone = np.stack([fit_of_sums(every, *table[:, k]) for k in range(5)], 1)
    np.testing.assert_allclose(together, alone, rtol=1e-8)


@pytest.mark.parametrize(
    "objective",
    [
        {"name": "fspo", "c_low": 0.02, "c_high": 0.04, "drift": "kl"},
        {"name": "fspo", "c_low": 0.02, "c_high": 0.04, "drift": "kl", "dual": None},
        {"name": "fspo", "clip_rate": 0.2, "drift": "kl", "dual": 1.2},
        {"name": "fspo", "c_low": 0.03, "c_high": 0.03, "drift": "bounded"},
        {"name": "fspo_adaptive"},
        {"name": "fspo", "c_low": 0.03, "c_high": 0.03, "drift": "zero"},
        {"name": "fspo", "c_low": 0.02, "c_high": 0.02, "exponent": 0.6, "drift": "kl"},
        {"name": "fspo", "c_low": 0.2, "c_high": 0.2, "exponent": 0.0, "drift": "zero"},
        {"name": "fspo_studentized", "c_low": 1.0, "c_high": 1.5, "drift": "kl"},
        {"name": "rloo"},
        {"name": "gspo", "clip_low": 3e-3, "clip_high": 4e-3},
        {"name": "luspo", "clip_low": 3e-3, "clip_high": 4e-3},
    ],
    ids=str,
)
def test_the_prediction_is_what_the_objective_clips_of_gaussian_tokens(objective: dict[str, Any]) -> None:
    """The objective's own code on independent Gaussian token log-ratios, at three lengths."""
    generator, mu, sigma, n = torch.Generator().manual_seed(0), -0.004, 0.03, 6000
    lengths = [16, 48, 144]
    L = torch.tensor(lengths).repeat(n)
    mask = torch.arange(144) < L[:, None]
    old = torch.zeros(mask.shape, dtype=torch.float64)
    l = mu + sigma * torch.randn(mask.shape, generator=generator, dtype=torch.float64)
    A = torch.where(torch.rand(len(L), generator=generator) < 0.5, 1.0, -1.0).double()
    rule = objectives.get(**objective)
    rule.observe((l * mask).sum(-1), L)  # a band that is learnt has seen an update like this one
    out = rule(l, old, A, mask)
    rates = [1 - float(out.accepted[length == L].mean()) for length in lengths]
    widths = {k: out.metrics.get(k) for k in ("c_low", "c_high")}
    stage = {"mu": mu, "sigma": sigma, "staleness": 1, "count": len(L)} | widths
    full = {"name": objective["name"], **rule.model_dump(mode="json")}
    group = RunGroup("t", "default", "m", [{"objective": json.dumps(full), "stages": [stage]}])
    want = pooled_clipping.predicted(group, lengths)
    assert want is not None
    error = 4 * np.sqrt(want * (1 - want) / n) + 1e-3
    assert np.abs(want - rates).max() <= error.max()
    assert (np.abs(want - rates) <= error).all()


def test_token_rules_and_no_stage_have_no_prediction() -> None:
    stages = [{"mu": 0.0, "sigma": 1.0, "staleness": 1, "count": 1, "c_low": None, "c_high": None}]
    made = [row for row in ROWS if row["method"] == "gspo"]
    token = json.dumps({"name": "grpo", **objectives.get("grpo").model_dump(mode="json")})
    unpredictable: list[dict[str, Any]] = [{"objective": token, "stages": stages}, {"stages": []}]
    for changes in unpredictable:
        assert pooled_clipping.predicted(RunGroup("t", "default", "m", [made[0] | changes]), [4, 8]) is None
    assert pooled_clipping.predicted(RunGroup("t", "default", "m", [made[0] | {"stages": stages}]), [4, 8]) is not None


def test_the_flatness_ratio_ranges_over_both_intervals() -> None:
    found = {g.method: clipped(g) for g in groups(ROWS, SUITE) if g.task == "sort"}
    ratio = pooled_clipping.flatness_ratio([found["gspo"]], [found["fspo"]])
    assert ratio is not None
    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.value == pytest.approx(found["gspo"].report.flatness / found["fspo"].report.flatness)
    assert 1 < ratio.low < ratio.value < ratio.high
    same = pooled_clipping.flatness_ratio([found["fspo"]], [found["fspo"]])
    assert covers(same, 1.0)
