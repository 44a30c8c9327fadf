"""Evaluation figures by hand and by brute force."""

from __future__ import annotations

import itertools

import pytest

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
    found = summarise(answers, "eval", prompts=2, samples=2)
    assert found.accuracy == 0.5
    assert found.reward == pytest.approx(2.5 / 4)
    assert found.unscored == 1
    assert found.pass_at == {1: 0.5, 2: 1.0}
    assert [(b.low, b.high, b.count, b.accuracy) for b in found.by_length] == [(1, 1, 2, 0.5), (9, 9, 2, 0.5)]
    line = found.line(7)
    assert (line.step, line.split, line.pass_at) == (7, "eval", {1: 0.5, 2: 1.0})
    assert "answers" not in line.model_dump()
    one = summarise([answer(1.0, 3)] * 8 + [answer(0.0, 3)] * 2, "eval", prompts=10, samples=1)
    assert one.interval == pytest.approx((0.4902, 0.9433), abs=1e-4)


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_nothing_or_everything_solved_still_has_an_interval(reward: float) -> None:
    found = summarise([answer(reward, 3)] * 40, "eval", prompts=10, samples=4)
    low, high = found.interval
    assert high - low == pytest.approx(0.2775, abs=1e-3)  # Wilson's for 0 or 10 of 10 prompts
    assert (low, high)[int(reward)] == pytest.approx(reward, abs=1e-12)
    assert found.pass_at_interval[4][1] - found.pass_at_interval[4][0] > 0.2
