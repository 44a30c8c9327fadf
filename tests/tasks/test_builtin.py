"""The built-in tasks: right solutions, fixed streams of prompts, separate splits, noise at its rate; free answers."""

from __future__ import annotations

import itertools
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

import fspo.tasks as tasks
from fspo.model.tiny import ALPHABET
from fspo.tasks import SPLITS, Example, Task
from fspo.tasks.procedural import Procedural
from fspo.tasks.task import in_split
from helpers.processes import printed

NAMES = ("sort", "add", "brackets", "count")
LARGE_ADD = {"name": "add", "n_max": 20}  # beyond what the default model can begin with
names = st.sampled_from(NAMES)
splits = st.sampled_from(tuple(SPLITS))
indices = st.integers(0, 10**9)


def sound(task: Task, split: str, index: int) -> tuple[Example, str]:
    """An example and its solution, after the checks that hold for every built-in task."""
    example = task.example(split, index)
    assert example.solution is not None
    assert set(example.prompt + example.solution) <= set(ALPHABET)
    assert 0.0 <= example.difficulty <= 1.0
    assert json.loads(json.dumps(asdict(example))) == asdict(example)
    assert in_split(example.prompt, split)
    assert task.example(split, index) == example
    return example, example.solution


def solve(prompt: str) -> str:
    """An independent solver of the prompt, by another way than the generator's."""
    name, problem = prompt.rstrip("=").split(":")
    if name == "sort":
        return "".join(c * n for c, n in sorted(Counter(problem).items()))
    if name == "add":
        a, b = (int(number[::-1]) for number in problem.split("+"))
        return str(a + b)[::-1]
    if name == "close":
        while (shorter := problem.replace("()", "").replace("[]", "").replace("{}", "")) != problem:
            problem = shorter
        return problem[::-1].translate(str.maketrans("([{", ")]}"))
    chain = "".join(f"{c}{problem[: i + 1].count(c)}" for i, c in enumerate(problem))
    return chain + "=" + "".join(f"{c}{problem.count(c)}" for c in sorted(set(problem)))


@given(names, splits, indices, st.integers(0, 5))
@settings(max_examples=200, deadline=None)
def test_solutions_are_right_and_earn_the_reward(name: str, split: str, index: int, seed: int) -> None:
    task = tasks.get({"name": name, "seed": seed})
    graded = tasks.get({"name": name, "seed": seed, "graded": True})
    example, right = sound(task, split, index)
    assert right == solve(example.prompt)
    assert task.score(example, right) == graded.score(example, right) == 1.0


@given(names, indices, st.data())
@settings(max_examples=200, deadline=None)
def test_a_changed_solution_earns_nothing(name: str, index: int, data: st.DataObject) -> None:
    task = tasks.get(name)
    example = task.example("train", index)
    right = example.answer
    at = data.draw(st.integers(0, len(right) - 1))
    letter = data.draw(st.sampled_from([c for c in ALPHABET if c != right[at]]))
    changed = right[:at] + letter + right[at + 1 :]
    wrong = [changed, right[:at], right + letter, "", letter + right]
    assert [task.score(example, text) for text in wrong] == [0.0] * len(wrong)
    graded = tasks.get({"name": name, "graded": True})
    assert graded.score(example, changed) == pytest.approx(at / len(right))
    assert all(0.0 <= graded.score(example, text) < 1.0 for text in wrong)
    assert graded.score(example, right + "a" * len(right)) == pytest.approx(0.5)


@pytest.mark.parametrize("spec", [LARGE_ADD if name == "add" else name for name in NAMES], ids=str)
def test_answers_differ_in_length_by_an_order_of_magnitude(spec: Any) -> None:
    task = tasks.get(spec)
    lengths = [len(task.example("train", i).answer) for i in range(500)]
    assert max(lengths) >= 10 * min(lengths)
    assert max(lengths) <= 128


@pytest.mark.parametrize("name", [*NAMES, "walk", "maze", "choice", "conflict"])
def test_no_prompt_is_in_two_splits_whatever_the_seed_and_the_sizes(name: str) -> None:
    seen: dict[str, str] = {}
    small = 4 if name in NAMES else 40
    for seed, n_max in ((0, small), (1, small), (0, small + 4)):
        task = tasks.get({"name": name, "n_min": 2, "n_max": n_max, "seed": seed})
        for split in SPLITS:
            for i in range(200):
                prompt = task.example(split, i).prompt
                assert seen.setdefault(prompt, split) == split
    assert set(seen.values()) == set(SPLITS)


def test_examples_and_noise_are_the_same_in_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"""
import json, fspo.tasks as t
prompts = [t.get(n).example(s, i).prompt for n in {NAMES} for s in t.SPLITS for i in (0, 7)]
noisy = t.get({{"name": "sort", "noise": 0.5}})
print(json.dumps([prompts, [noisy.score(noisy.example("train", i), x) for i in range(30) for x in "ab"]]))
"""
    here = [tasks.get(n).example(s, i).prompt for n in NAMES for s in SPLITS for i in (0, 7)]
    task, other = (tasks.get({"name": "sort", "noise": 0.5, "seed": seed}) for seed in (0, 1))
    examples = [task.example("train", i) for i in range(30)]
    noise = [task.score(e, x) for e in examples for x in "ab"]
    for seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        assert printed(code, tmp_path) == [here, noise]
    assert len(set(here)) == len(here)
    assert noise[::2] != noise[1::2]  # differs between answers and seeds
    assert [other.score(e, "a") for e in examples] != noise[::2]


def test_the_stream_does_not_change_between_versions() -> None:
    """A resumed run must see the prompts that the first one would have seen."""
    assert tasks.get("sort").example("eval", 3).prompt == "sort:vqjqgtictcmnkynfuxterwxsjyvoxsdgfcbil="
    assert tasks.get(LARGE_ADD).example("eval", 3).prompt == "add:286495643224+035173141662="


def test_a_space_that_is_too_small_is_refused_instead_of_searched_forever() -> None:
    task = tasks.get({"name": "sort", "n_min": 1, "n_max": 1, "letters": 2})
    with pytest.raises(ValueError, match=r"too few different problems to fill the split '\w+': raise n_max"):
        [task.example(split, 0) for split in SPLITS]


def test_wrong_calls_say_what_to_do() -> None:
    task = tasks.get("sort")
    with pytest.raises(ValueError, match="unknown split 'test': use one of eval, validation, train"):
        task.example("test", 0)
    with pytest.raises(ValueError, match="index -1 is negative"):
        task.example("train", -1)
    assert task.size("train") is None


def flips(spec: dict[str, Any], split: str = "train", count: int = 4000) -> list[tuple[float, bool]]:
    """(difficulty, whether the reward of the right answer was flipped) of the first prompts."""
    task = tasks.get({"name": "sort", "n_min": 4, "n_max": 12, **spec})
    examples = [task.example(split, i) for i in range(count)]
    return [(e.difficulty, task.score(e, e.answer) == 0.0) for e in examples]


def assert_rate(outcomes: Sequence[float], chance: float, confidence: float = 0.999, slack: float = 0.0) -> None:
    """The chance is in the confidence interval of the share of ones, among zeros and ones."""
    low, high = binomtest(int(sum(outcomes)), len(outcomes)).proportion_ci(confidence, "wilson")
    assert low - slack <= chance <= high + slack, (sum(outcomes), len(outcomes), chance)


def test_noise_flips_rewards_at_its_rate_whatever_the_size() -> None:
    rewards = flips({"noise": 0.2})
    assert_rate([flipped for _, flipped in rewards], 0.2)
    for d in {d for d, _ in rewards}:
        assert_rate([flipped for e, flipped in rewards if e == d], 0.2)
    task = tasks.get({"name": "sort", "noise": 0.2})
    wrong = [task.score(task.example("train", i), "no") for i in range(2000)]
    assert set(wrong) == {0.0, 1.0}
    assert_rate([reward == 1.0 for reward in wrong], 0.2)


def test_noise_by_length_grows_from_nothing_to_its_value() -> None:
    rewards = flips({"noise_by_length": 0.4}, count=8000)
    assert not any(flipped for d, flipped in rewards if d == 0)
    for d in {d for d, _ in rewards} - {0.0}:
        assert_rate([flipped for e, flipped in rewards if e == d], 0.4 * d)
    both = flips({"noise": 0.1, "noise_by_length": 0.4}, count=8000)
    assert_rate([flipped for d, flipped in both if d == 0], 0.1)
    assert_rate([flipped for d, flipped in both if d == 1], 0.5)


def test_held_out_answers_are_scored_without_noise() -> None:
    for split in ("eval", "validation"):
        assert not any(flipped for _, flipped in flips({"noise": 1.0}, split, count=300))
    assert all(flipped for _, flipped in flips({"noise": 1.0}, count=300))


def test_a_graded_reward_is_flipped_whole() -> None:
    task = tasks.get({"name": "sort", "graded": True, "noise": 1.0})
    example = task.example("train", 0)
    half = example.answer[: len(example.answer) // 2]
    assert task.score(example, half) == pytest.approx(1 - len(half) / len(example.answer))


# --- many right answers: others than the solution are checked by independent rules, in linear time -------------------


SPECS: list[dict[str, Any]] = [
    {"name": "walk"}, {"name": "walk", "down": True}, {"name": "maze"}, {"name": "choice"}, {"name": "conflict"}
]  # fmt: skip
specs = st.sampled_from(SPECS)


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
def test_free_solutions_are_right(spec: dict[str, Any], split: str, index: int, seed: int) -> None:
    task, graded = tasks.get(spec | {"seed": seed}), tasks.get(spec | {"seed": seed, "graded": True})
    example, right = sound(task, split, index)
    reward = graded.score(example, right)
    assert reward == pytest.approx(credit(spec, example, right))
    if spec["name"] in ("walk", "maze"):
        assert reward == task.score(example, right) == 1.0


@given(specs, indices, st.data())
@settings(max_examples=100, deadline=None)
def test_a_changed_solution_earns_what_the_rules_say(spec: dict[str, Any], index: int, data: st.DataObject) -> None:
    task, graded = tasks.get(spec), tasks.get(spec | {"graded": True})
    example, right = sound(task, "train", index)
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


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_sizes_are_log_uniform_and_answers_spread_widely(spec: dict[str, Any]) -> None:
    task = tasks.get(spec)
    assert isinstance(task, Procedural)
    examples = [task.example("train", i) for i in range(1000)]
    sizes = [float(e.attributes["size"]) for e in examples]
    middle = math.sqrt(task.n_min * (task.n_max + 1))
    expected = math.log((task.n_max + 1) / math.floor(middle + 1)) / math.log((task.n_max + 1) / task.n_min)
    # Few different walks: a split has not every number.
    assert_rate([size > middle for size in sizes], expected, confidence=0.9999, slack=0.03)
    lengths = [len(e.solution or "") for e in examples]
    assert max(lengths) >= 15 * min(lengths)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_hostile_answers_are_scored_in_linear_time(spec: dict[str, Any]) -> None:
    """Four times the text executes at most about four times the lines. What is slow inside one line, as a regular
    expression that backtracks, would not end within the test's time limit on the longest text."""
    task, graded = tasks.get(spec), tasks.get(spec | {"graded": True})
    example = task.example("train", 7)
    right = example.solution or ""
    wander = " ".join(right.split(" ")[:2]) + " "  # to and fro in a maze, step by step
    for seed in ("1", "0,", "9" * 9 + ",", "a", "aa ", "a:", ">", "1>1,", "\x00", "٣", right, right + ",", "-", wander):
        short, long, longest = (seed * (size // len(seed)) for size in (4_000, 16_000, 500_000))
        assert task.score(example, longest) == 0.0
        assert graded.score(example, longest) < 1.0
        assert lines_run(graded, example, long) <= 5 * lines_run(graded, example, short), seed


def lines_run(task: Task, example: Example, text: str) -> int:
    """The lines that are executed to score an answer."""
    count, before = 0, sys.gettrace()

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        task.score(example, text)
    finally:
        sys.settrace(before)
    return count


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
    assert_rate(paid[True], 0.75)
    assert set(paid[False]) == {1.0}
    assert_rate([0] * len(paid[True]) + [1] * len(paid[False]), task.optimum()["worked"])


@pytest.mark.parametrize("short", [0.3, 0.7])
def test_the_best_share_of_a_is_the_share_of_short_questions(short: float) -> None:
    """The mean graded reward over questions, as a function of the share of a, by brute force over the letters."""
    task = tasks.get({"name": "conflict", "short": short, "letters": 10, "graded": True})
    examples = [task.example("train", i) for i in range(2000)]
    rewards = []
    for k in range(11):
        answers = ["a" * k + "b" * (10 - k) + (e.solution or "")[10:] for e in examples]
        rewards.append([task.score(e, a) for e, a in zip(examples, answers, strict=True)])
        assert task.features(examples[0], answers[0]) == {"share of a": k / 10}
    assert np.mean(rewards, axis=1).argmax() / 10 == pytest.approx(task.optimum()["share of a"])


def test_the_kind_of_a_question_is_not_in_its_bits_one_by_one() -> None:
    task = tasks.get({"name": "conflict", "short": 0.5})
    examples = [task.example("train", i) for i in range(3000)]
    for bit in range(8):
        ones = [e.difficulty > 0 for e in examples if e.prompt.split(",")[1][bit] == "1"]
        assert_rate(ones, 0.5, confidence=0.9999)


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match=r"noise and noise_by_length add up to 1\.1, above 1"):
        tasks.get({"name": "sort", "noise": 0.7, "noise_by_length": 0.4})
    with pytest.raises(ValueError, match="n_max 60 is above 50, the way across the grid: lower it"):
        tasks.get({"name": "maze", "n_max": 60})
    with pytest.raises(ValueError, match="bits 1 would show the kind of a question"):
        tasks.get({"name": "conflict", "bits": 1})


def test_a_mixture_has_the_features_of_its_parts() -> None:
    mixture = tasks.get(["choice", "sort"])
    example = next(e for i in range(50) if (e := mixture.example("train", i)).task == "choice")
    assert mixture.features(example, "a1>1")["worked"] == 1.0
    assert mixture.features(replace(example, task="sort"), "1>1") == {}
