"""Tasks with many right answers: own solutions are right, others are checked by independent rules, in linear time."""

from __future__ import annotations

import itertools
import json
import math
import re
import time
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

import fspo.tasks as tasks
from fspo.tasks import ALPHABET, SPLITS
from fspo.tasks.procedural import Procedural
from fspo.tasks.task import Example, in_split

NAMES = ("walk", "maze", "choice", "conflict")
SPECS: dict[str, dict[str, Any]] = {
    "walk": {"name": "walk"},
    "walk down": {"name": "walk", "down": True},
    "maze": {"name": "maze"},
    "choice": {"name": "choice"},
    "conflict": {"name": "conflict"},
}
specs = st.sampled_from(list(SPECS.values()))
splits = st.sampled_from(tuple(SPLITS))
indices = st.integers(0, 10**9)


def credit(spec: dict[str, Any], example: Example, answer: str) -> float:
    """The reward by rules written apart from the task's own."""
    body = example.prompt.split(":")[1].rstrip("=")
    if spec["name"] == "walk":
        if not re.fullmatch(r"(0|[1-9][0-9]*)(,(0|[1-9][0-9]*))*", answer):
            return 0.0
        numbers = [int(text) for text in answer.split(",")]
        path = [int(body), *numbers, 0] if spec.get("down") else [0, *numbers, int(body)]
        steps = [abs(a - b) for a, b in itertools.pairwise(path)]
        rising = path == sorted(path, reverse=bool(spec.get("down")))
        return float(rising and steps[-1] == 0 and all(1 <= s <= 9 for s in steps[:-1]))
    if spec["name"] == "maze":
        start, listed = body.split("|")
        cells = answer.split(" ")
        if not re.fullmatch(r"[a-z]{2}( [a-z]{2})*", answer) or cells[0] != start or cells[-1] != "aa":
            return 0.0
        moves = [abs(ord(a[0]) - ord(b[0])) + abs(ord(a[1]) - ord(b[1])) for a, b in itertools.pairwise(cells)]
        return float(all(m == 1 for m in moves) and not set(cells) & set(listed.split()))
    if spec["name"] == "choice":
        digits = re.sub("[a-z]", "", body)
        if answer == str(sum(map(int, digits)) % 3):
            return 1.0
        if not re.fullmatch(r"([a-z][0-9])+>[0-9](,([a-z][0-9])+>[0-9])*", answer):
            return 0.0
        pieces, totals = zip(*(step.split(">") for step in answer.split(",")), strict=True)
        sums = list(itertools.accumulate(sum(map(int, re.sub("[a-z]", "", piece))) for piece in pieces))
        right = "".join(pieces) == body and [s % 3 for s in sums] == [int(t) for t in totals]
        return (0.5 if len(digits) <= 3 else 1.0) * right
    n, bits = body.split(",")
    long = bits.count("1") % 2 == 1
    rest = "".join(str(bits[: k + 1].count("1") % 2) for k in range(len(bits)))
    count = "".join(f"{k}[a-z]" for k in range(int(n), 0, -1)) if long else ""
    if not re.fullmatch(rf"[ab]{{8}}:{rest}{count}", answer):
        return 0.0
    x = answer[:8].count("a") / 8
    return 1 - x**2 if long else 1 - (1 - x) ** 2


@given(specs, splits, indices, st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_solutions_are_right(spec: dict[str, Any], split: str, index: int, seed: int) -> None:
    task, graded = tasks.get(spec | {"seed": seed}), tasks.get(spec | {"seed": seed, "graded": True})
    example = task.example(split, index)
    assert example.solution is not None
    assert in_split(example.prompt, split)
    assert set(example.prompt + example.solution) <= set(ALPHABET)
    assert 0.0 <= example.difficulty <= 1.0
    assert json.loads(json.dumps(asdict(example))) == asdict(example)
    assert task.example(split, index) == example
    reward = graded.score(example, example.solution)
    assert reward == pytest.approx(credit(spec, example, example.solution))
    if spec["name"] in ("walk", "maze"):
        assert reward == task.score(example, example.solution) == 1.0


@given(specs, indices, st.data())
@settings(max_examples=100, deadline=None)
def test_a_changed_solution_earns_what_the_rules_say(spec: dict[str, Any], index: int, data: st.DataObject) -> None:
    task, graded = tasks.get(spec), tasks.get(spec | {"graded": True})
    example = task.example("train", index)
    right = example.solution
    assert right is not None
    at = data.draw(st.integers(0, len(right) - 1))
    letter = data.draw(st.sampled_from(ALPHABET + "é٣²\x00 "))
    for text in (
        right[:at] + letter + right[at + 1 :], right[:at] + right[at + 1 :], right[:at], right + letter, letter + right,
        right[:at] + letter + right[at:], right + right, "", letter * 3, right + " ", "0" + right,
    ):  # fmt: skip
        expected = credit(spec, example, text)
        reward = graded.score(example, text)
        if spec["name"] in ("walk", "maze"):
            assert 0.0 <= reward <= 1.0
            assert (reward == 1.0) == (expected == 1.0) == (task.score(example, text) == 1.0), text
        else:
            assert reward == pytest.approx(expected), text
            assert task.score(example, text) in (0.0, float(expected > 0))


@pytest.mark.parametrize("spec", SPECS.values(), ids=list(SPECS))
def test_sizes_are_log_uniform_and_answers_spread_widely(spec: dict[str, Any]) -> None:
    task = tasks.get(spec)
    assert isinstance(task, Procedural)
    examples = [task.example("train", i) for i in range(1000)]
    sizes = [float(e.attributes["size"]) for e in examples]
    middle = math.sqrt(task.n_min * (task.n_max + 1))
    expected = math.log((task.n_max + 1) / math.floor(middle + 1)) / math.log((task.n_max + 1) / task.n_min)
    low, high = binomtest(sum(size > middle for size in sizes), len(sizes)).proportion_ci(0.9999, "wilson")
    assert low - 0.03 <= expected <= high + 0.03  # few different walks: a split has not every number
    lengths = [len(e.solution or "") for e in examples]
    assert max(lengths) >= 15 * min(lengths)


@pytest.mark.parametrize("spec", SPECS.values(), ids=list(SPECS))
def test_hostile_answers_are_scored_in_linear_time(spec: dict[str, Any]) -> None:
    task, graded = tasks.get(spec), tasks.get(spec | {"graded": True})
    example = task.example("train", 7)
    right = example.solution or ""
    for seed in ("1", "0,", "9" * 9 + ",", "a", "aa ", "a:", ">", "1>1,", "\x00", "٣", right, right + ",", "-"):
        text = seed * (500_000 // len(seed))
        began = time.process_time()
        assert task.score(example, text) == 0.0
        assert graded.score(example, text) < 1.0
        assert time.process_time() - began < 60.0, seed  # quadratic time would be hours


def test_working_pays_for_hard_questions_only() -> None:
    task = tasks.get({"name": "choice", "worked": 1.0, "easy": 4, "price": 0.25, "graded": True})
    drawn = tasks.get({"name": "choice", "worked": 1.0, "easy": 4, "price": 0.25})
    paid: dict[bool, list[float]] = {True: [], False: []}
    for i in range(3000):
        example = task.example("train", i)
        digits = example.prompt[5:-1:2]
        easy = len(digits) <= 4
        assert task.score(example, str(sum(map(int, digits)) % 3)) == 1.0
        assert task.score(example, example.solution or "") == (0.75 if easy else 1.0)
        assert drawn.score(example, str(sum(map(int, digits)) % 3)) == 1.0
        paid[easy].append(drawn.score(example, example.solution or ""))
        features = task.features(example, example.solution or "")
        assert features == {"worked": 1.0, "worked, easy" if easy else "worked, hard": 1.0}
    low, high = binomtest(int(sum(paid[True])), len(paid[True])).proportion_ci(0.999, "wilson")
    assert low <= 0.75 <= high
    assert set(paid[False]) == {1.0}
    low, high = binomtest(len(paid[False]), 3000).proportion_ci(0.999, "wilson")
    assert low <= task.optimum()["worked"] <= high


@pytest.mark.parametrize("short", [0.3, 0.7])
def test_the_best_share_of_a_is_the_share_of_short_questions(short: float) -> None:
    """The mean graded reward over questions, as a function of the share of a, by brute force over the letters."""
    task = tasks.get({"name": "conflict", "short": short, "letters": 10, "graded": True})
    examples = [task.example("train", i) for i in range(2000)]
    means = []
    for k in range(11):
        chosen = "a" * k + "b" * (10 - k)
        answers = [chosen + (e.solution or "")[10:] for e in examples]
        means.append(sum(task.score(e, a) for e, a in zip(examples, answers, strict=True)) / len(examples))
        assert task.features(examples[0], answers[0]) == {"share of a": k / 10}
    assert means.index(max(means)) / 10 == pytest.approx(task.optimum()["share of a"])
    # Where long questions count a tenth, the best share is another one.
    weights = [1.0 if e.difficulty == 0 else 0.1 for e in examples]
    moved = short / (short + (1 - short) / 10)
    best = max(range(11), key=lambda k: sum(
        w * task.score(e, "a" * k + "b" * (10 - k) + (e.solution or "")[10:]) for w, e in zip(weights, examples,
        strict=True)))  # fmt: skip
    assert best / 10 == pytest.approx(moved, abs=0.06)


def test_the_kind_of_a_question_is_not_in_its_bits_one_by_one() -> None:
    task = tasks.get({"name": "conflict", "short": 0.5})
    examples = [task.example("train", i) for i in range(3000)]
    for bit in range(8):
        ones = [e.difficulty > 0 for e in examples if e.prompt.split(",")[1][bit] == "1"]
        low, high = binomtest(sum(ones), len(ones)).proportion_ci(0.9999, "wilson")
        assert low <= 0.5 <= high, bit


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="n_max 60 is above 50, the way across the grid: lower it"):
        tasks.get({"name": "maze", "n_max": 60})
    with pytest.raises(ValueError, match="bits 1 would show the kind of a question"):
        tasks.get({"name": "conflict", "bits": 1})


def test_a_mixture_has_the_features_of_its_parts() -> None:
    mixture = tasks.get(["choice", "sort"])
    example = next(e for i in range(50) if (e := mixture.example("train", i)).task == "choice")
    assert mixture.features(example, "a1>1")["worked"] == 1.0
    assert mixture.features(replace(example, task="sort"), "1>1") == {}
