"""Evaluation figures by hand and by brute force."""

from __future__ import annotations

import itertools

import pytest

from fspo.fairness.measure import wilson
from fspo.runs import unscored_warnings
from fspo.training.evaluate import Answer, pass_at_k, summarise


@pytest.mark.parametrize(("n", "correct"), [(5, 0), (5, 2), (5, 5), (8, 1)])
def test_pass_at_k_is_the_share_of_draws_with_a_correct_answer(n: int, correct: int) -> None:
    answers = [i < correct for i in range(n)]
    for k in range(1, n + 1):
        draws = [any(draw) for draw in itertools.combinations(answers, k)]
        assert pass_at_k(n, correct, k) == pytest.approx(sum(draws) / len(draws))


def answer(reward: float | None, length: int) -> Answer:
    return Answer("p", "c", reward, length, truncated=False, difficulty=length / 10, task="t")


def test_summary() -> None:
    answers = [answer(1.0, 1), answer(0.5, 1), answer(None, 9), answer(1.0, 9)]
    summary = summarise(answers, "eval", prompts=2, samples=2)
    # The answer without a score is in no rate; pass@2 is over the one prompt with two scored answers.
    assert summary.accuracy == pytest.approx(2 / 3)
    assert summary.reward == pytest.approx(2.5 / 3)
    assert summary.unscored == 1
    assert summary.pass_at == {1: 0.75, 2: 1.0}
    assert [(b.low, b.high, b.count, b.accuracy) for b in summary.by_length] == [(1, 1, 2, 0.5), (9, 9, 1, 1.0)]
    line = summary.line(7)
    assert (line.step, line.split, line.pass_at) == (7, "eval", {1: 0.75, 2: 1.0})
    assert "answers" not in line.model_dump()
    one = summarise([answer(1.0, 3)] * 8 + [answer(0.0, 3)] * 2, "eval", prompts=10, samples=1)
    assert one.interval == pytest.approx((0.4902, 0.9433), abs=1e-4)


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_nothing_or_everything_solved_still_has_an_interval(reward: float) -> None:
    summary = summarise([answer(reward, 3)] * 40, "eval", prompts=10, samples=4)
    low, high = summary.interval
    assert high - low == pytest.approx(0.2775, abs=1e-3)  # Wilson's for 0 or 10 of 10 prompts
    assert (low, high)[int(reward)] == pytest.approx(reward, abs=1e-12)
    assert summary.pass_at_interval[4][1] - summary.pass_at_interval[4][0] > 0.2


def test_one_prompt_is_no_certainty() -> None:
    summary = summarise([answer(float(k < 3), 3) for k in range(8)], "eval", prompts=1, samples=8)
    assert summary.accuracy == pytest.approx(3 / 8)
    assert summary.interval[1] - summary.interval[0] > 0.8


def test_answers_without_a_score_are_not_wrong() -> None:
    failed = Answer("p", "c", None, 3, False, 0.3, "t", "error", "ValueError: no <object at 0x7f00aa11bb22>")
    summary = summarise([answer(1.0, 3)] * 6 + [failed] * 4, "eval", prompts=10, samples=1)
    assert (summary.accuracy, summary.reward, summary.unscored) == (1.0, 1.0, 4)
    assert summary.interval == pytest.approx(wilson(6, 6))
    assert summary.unscored_by_kind == {"error": 4}
    (text,) = unscored_warnings(summary.line(1)).values()
    assert "4 answers could not be scored" in text
    assert "ValueError: no <object at 0x...>" in text


def test_an_evaluation_without_any_score_has_no_accuracy() -> None:
    for samples in (1, 4):
        summary = summarise([answer(None, 3)] * 8, "eval", prompts=8 // samples, samples=samples)
        assert summary.accuracy is None
        assert (summary.pass_at, summary.by_length, summary.by_task) == ({}, [], {})
        line = summary.line(1)
        assert (line.accuracy, line.reward, line.unscored) == (None, None, 8)


def test_the_interval_over_prompts_covers_prompts_with_missing_scores() -> None:
    rows = [answer(1.0, 3), answer(None, 3), answer(0.0, 3), answer(1.0, 3)] * 20
    summary = summarise(rows, "eval", prompts=20, samples=4)
    assert summary.accuracy == pytest.approx(2 / 3)
    assert summary.interval == pytest.approx(wilson(20 * 2 / 3, 20)), "all prompts agree: a bootstrap would be a point"
    assert sorted(summary.pass_at) == [1, 2]
    mixed = summarise(rows[:42] + [answer(None, 3)] * 38, "eval", prompts=20, samples=4)
    assert mixed.interval[0] < (mixed.accuracy or 0.0) < mixed.interval[1]
