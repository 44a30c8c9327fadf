"""Lanes: refill, growth and joining leave every answer as it is; memory stays within its bound."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fspo.model import decode
from fspo.model.answers import Answers
from fspo.model.decode import FamilyDecoder
from fspo.model.forward import family
from fspo.rollout import generate as rollout
from fspo.rollout.generate import generate
from fspo.rollout.sampling import uniforms
from helpers.policies import VOCABULARY, make

LIMIT = 40


def prompts() -> list[list[int]]:
    rng = random.Random(3)
    return [[rng.randrange(3, VOCABULARY) for _ in range(n)] for n in (5, 9, 1, 30, 2, 7)]


def sampled(policy: Any, **options: Any) -> Answers:
    return generate(policy, prompts(), 9, max_new_tokens=LIMIT, seed=11, **options)


LAYOUTS: dict[str, dict[str, Any]] = {
    "refill": {"ROWS": 8, "REFILL": 3},
    "refill one by one, leave at once": {"ROWS": 7, "REFILL": 1, "SHRINK": 1.0},
    "few prompt tokens at once": {"PREFILL": 12},
    "look at every step": {"SPAN": 1},
    "grow by two columns": {"BLOCK": 2, "ROWS": 20, "REFILL": 5},
    "one cohort": {"PADDED": 1e9, "ROWS": 11, "REFILL": 2},
    "cohorts never join": {"PADDED": 0.0, "SMALL": -1, "ROWS": 11, "REFILL": 2},
    "little memory": {"CACHE": 300, "BLOCK": 2},
    "hardly any memory": {"CACHE": 1, "BLOCK": 2},
}


@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("name", ["qwen3", "llama"])
def test_no_layout_changes_an_answer(name: str, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make(name)
    expected = sampled(policy)
    assert 5 < sum(expected.finished) < 54
    assert len({len(c) for c in expected.completions}) > 10
    held = memory_of(monkeypatch)
    settings = dict(LAYOUTS[layout])
    if "CACHE" in settings:  # in tokens
        settings["CACHE"] *= held.token_bytes(policy)
    for key, value in settings.items():
        monkeypatch.setattr(decode if key in ("BLOCK", "PADDED", "SMALL") else rollout, key, value)
    assert sampled(policy) == expected
    if "memory" in layout:
        assert held.lanes == max(1, LAYOUTS[layout]["CACHE"] // (30 + LIMIT))
        assert held.tokens <= max(LAYOUTS[layout]["CACHE"], 30 + LIMIT + LIMIT // 4)


class Held:
    """The most cached tokens and lanes, read from the decoder's own tensors after every step."""

    tokens = lanes = 0

    @staticmethod
    def token_bytes(policy: Any) -> int:
        parts = family(policy)
        assert parts is not None
        return 2 * len(parts.layers) * parts.kv_heads * parts.head_size * 4


def memory_of(monkeypatch: pytest.MonkeyPatch) -> Held:
    held = Held()
    step = FamilyDecoder.step

    def watched_step(self: FamilyDecoder, tokens: Any) -> Any:
        logits = step(self, tokens)
        groups = [x for c in self.cohorts for x in (c.keys, c.values, c.prompt_keys, c.prompt_values)]
        held.tokens = max(held.tokens, sum(x.nbytes for layers in groups for x in layers) // self.token_bytes)
        held.lanes = max(held.lanes, len(tokens))
        return logits

    monkeypatch.setattr(FamilyDecoder, "step", watched_step)
    return held


def test_long_answers_hold_memory_for_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of 4,096 costs nothing if answers are short."""
    policy, held = make("llama"), memory_of(monkeypatch)
    policy.model.config.max_position_embeddings = 8192
    short = generate(policy, prompts(), 9, max_new_tokens=60, seed=11)
    most = held.tokens
    long = generate(policy, prompts(), 9, max_new_tokens=4096, seed=11)
    assert [c[:60] for c in long.completions] == short.completions
    assert 60 < max(map(len, long.completions)) < 4096
    assert held.tokens < 2 * most


def test_a_part_of_the_prompts_gives_the_answers_of_the_whole() -> None:
    policy = make("qwen2")
    whole = sampled(policy)
    part = generate(policy, prompts()[2:6:3], 9, max_new_tokens=LIMIT, seed=11, indices=[2, 5])
    assert part.completions == whole.completions[18:27] + whole.completions[45:54]


def splitmix(state: int) -> int:
    z = state % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


@given(st.integers(0, 2**62), st.integers(0, 10**6), st.integers(0, 5000))
def test_streams_are_splitmix(seed: int, answer: int, start: int) -> None:
    weyl = 0x9E3779B97F4A7C15
    key = splitmix(splitmix(seed) + answer * weyl)
    expected = [(splitmix(key + (start + t) * weyl) >> 11) / 2**53 for t in (1, 2, 3)]
    assert uniforms(seed, torch.tensor([answer]), torch.tensor([start]), 3).flatten().tolist() == expected


def test_streams_are_uniform_and_uncorrelated() -> None:
    zero = torch.zeros(400, dtype=torch.long)
    a, b = (uniforms(seed, torch.arange(400), zero, 500) for seed in (1, 2))
    assert stats.kstest(a.flatten().numpy(), "uniform").pvalue > 1e-3
    for x, y in ((a[1:], a[:-1]), (a[:, 1:], a[:, :-1]), (a, b)):  # positions, answers, seeds
        r = stats.pearsonr(x.flatten().numpy(), y.flatten().numpy())
        assert r.pvalue > 1e-3
