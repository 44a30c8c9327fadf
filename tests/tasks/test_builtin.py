"""The built-in tasks: right solutions, fixed streams of prompts, separate splits, and noise at its rate."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

import fspo.tasks as tasks
from fspo.tasks import ALPHABET, SPLITS

NAMES = ("sort", "add", "brackets", "count")
LARGE = {"add": {"n_max": 20}}  # beyond what the default model can begin with
names = st.sampled_from(NAMES)
splits = st.sampled_from(tuple(SPLITS))
indices = st.integers(0, 10**9)


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
    example = task.example(split, index)
    assert example.solution is not None
    assert example.solution == solve(example.prompt)
    assert task.score(example, example.solution) == 1.0
    assert graded.score(example, example.solution) == 1.0
    assert set(example.prompt + example.solution) <= set(ALPHABET)
    assert 0.0 <= example.difficulty <= 1.0
    assert json.loads(json.dumps(asdict(example))) == asdict(example)


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


@pytest.mark.parametrize("name", NAMES)
def test_answers_differ_in_length_by_an_order_of_magnitude(name: str) -> None:
    task = tasks.get({"name": name, **LARGE.get(name, {})})
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


def test_examples_and_noise_are_the_same_in_every_process() -> None:
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
        env = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
        assert json.loads(done.stdout) == [here, noise]
    assert len(set(here)) == len(here)
    assert noise[::2] != noise[1::2]  # differs between answers and seeds
    assert [other.score(e, "a") for e in examples] != noise[::2]


def test_the_stream_does_not_change_between_versions() -> None:
    """A resumed run must see the prompts that the first one would have seen."""
    assert tasks.get("sort").example("eval", 3).prompt == "sort:vqjqgtictcmnkynfuxterwxsjyvoxsdgfcbil="
    assert tasks.get({"name": "add", "n_max": 20}).example("eval", 3).prompt == "add:286495643224+035173141662="


def test_seeds_give_other_streams() -> None:
    a, b = ({tasks.get({"name": "sort", "seed": s}).example("train", i).prompt for i in range(50)} for s in (0, 1))
    assert not a & b


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


def assert_rate(found: list[bool], chance: float) -> None:
    low, high = binomtest(sum(found), len(found)).proportion_ci(0.999, "wilson")
    assert low <= chance <= high, (sum(found), len(found), chance)


def test_noise_flips_rewards_at_its_rate_whatever_the_size() -> None:
    found = flips({"noise": 0.2})
    assert_rate([flipped for _, flipped in found], 0.2)
    for d in {d for d, _ in found}:
        assert_rate([flipped for e, flipped in found if e == d], 0.2)
    task = tasks.get({"name": "sort", "noise": 0.2})
    wrong = [task.score(task.example("train", i), "no") for i in range(2000)]
    assert set(wrong) == {0.0, 1.0}
    assert_rate([reward == 1.0 for reward in wrong], 0.2)


def test_noise_by_length_grows_from_nothing_to_its_value() -> None:
    found = flips({"noise_by_length": 0.4}, count=8000)
    assert not any(flipped for d, flipped in found if d == 0)
    for d in {d for d, _ in found} - {0.0}:
        assert_rate([flipped for e, flipped in found if e == d], 0.4 * d)
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


def test_a_probability_above_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"noise and noise_by_length add up to 1\.1, above 1"):
        tasks.get({"name": "sort", "noise": 0.7, "noise_by_length": 0.4})
