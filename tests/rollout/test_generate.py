"""The local sampler draws from the exact distribution of the model, and its answers depend on the seed only."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from scipy import stats

from fspo.model.forward import family, logprobs
from fspo.model.loading import Policy, load
from fspo.rollout import generate as rollout
from fspo.rollout.generate import encode, generate
from fspo.rollout.sampling import draw
from fspo.tasks.task import Example
from helpers.policies import MODELS, VOCABULARY, make, make_gpt2


def prompts(seed: int = 0, lengths: tuple[int, ...] = (5, 9, 1, 30)) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, VOCABULARY) for _ in range(n)] for n in lengths]


def greedy(policy: Policy, prompt: list[int], limit: int) -> list[int]:
    ids = torch.tensor([prompt])
    out = policy.model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=limit, eos_token_id=1, pad_token_id=0
    )
    return [int(token) for token in out[0, len(prompt) :]]


def check_greedy(policy: Policy) -> None:
    asked = prompts(1, (5, 9, 1, 30, 2, 3, 4, 6, 7, 8, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20))
    got = generate(policy, asked, 2, max_new_tokens=30, temperature=0)
    for i, prompt in enumerate(asked):
        expected = greedy(policy, prompt, 30)
        assert got.completions[2 * i] == got.completions[2 * i + 1] == expected
        assert got.finished[2 * i] == (expected[-1] == 1)


@pytest.mark.parametrize("name", [*MODELS, "gpt2"])
def test_greedy_equals_generate(name: str) -> None:
    policy = make_gpt2() if name == "gpt2" else make(name)
    assert (family(policy) is None) == (name == "gpt2")
    check_greedy(policy)


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_first_two_tokens_follow_the_exact_distribution(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chi-square of 40,000 answers against the products of softmax probabilities of the module's own forward; for a
    model that transformers samples, whatever its own settings cut off."""
    policy = make_gpt2() if name == "gpt2" else make(name)
    prompt, n, temperature = prompts()[1], 40_000, 1.3
    if name == "gpt2":
        monkeypatch.setattr(rollout, "ROWS", 8000)
        policy.model.generation_config.top_k = 5
    policy.eos_ids = () if name == "qwen3" else (VOCABULARY,)  # no answer ends
    got = generate(policy, [prompt], n, max_new_tokens=2, temperature=temperature, seed=5)
    counts = torch.zeros(VOCABULARY, VOCABULARY)
    for a, b in got.completions:
        counts[a, b] += 1
    with torch.no_grad():
        ids = torch.tensor([[*prompt, a] for a in range(VOCABULARY)])
        logits = policy.model(ids).logits
    first = (logits[0, -2] / temperature).softmax(-1)
    joint = (first.unsqueeze(1) * (logits[:, -1] / temperature).softmax(-1)).double()
    common = joint * n >= 5
    observed, expected = counts[common].tolist(), (joint[common] * n).tolist()
    if not common.all():
        observed.append(counts[~common].sum().item())
        expected.append(joint[~common].sum().item() * n)
    scale = sum(observed) / sum(expected)
    assert common.sum() > 100
    assert stats.chisquare(observed, [e * scale for e in expected]).pvalue > 1e-3


def test_the_same_seed_gives_the_same_answers_and_another_does_not() -> None:
    policy = make("qwen3")
    a, b, c = (generate(policy, prompts(), 6, max_new_tokens=25, seed=s) for s in (1, 1, 2))
    assert a == b
    assert a.completions != c.completions
    assert len({tuple(x) for x in a.completions}) > 12  # members of a group differ


def test_completions_end_with_their_only_end_token_or_at_the_limit() -> None:
    policy = make("qwen2")
    policy.eos_ids = (1, 7)
    got = generate(policy, prompts(), 10, max_new_tokens=30, seed=7)
    assert any(got.finished)
    assert not all(got.finished)
    for completion, finished in zip(got.completions, got.finished, strict=True):
        assert not {1, 7} & set(completion[:-1])
        assert (completion[-1] in (1, 7)) == finished
        assert finished or len(completion) == 30
    out = logprobs(policy, got)
    assert out.mask.sum().item() == got.tokens


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"temperature": -1.0}, "temperature is -1"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"prompts": [[1], []]}, "a prompt is empty"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        generate(make("llama"), **{"prompts": prompts(), "max_new_tokens": 3, **settings})


@pytest.mark.parametrize("vocabulary", [7, 512, 513, 1000, 1024])
def test_draw_inverts_the_cumulative_distribution(vocabulary: int) -> None:
    gen = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(vocabulary, 50, generator=gen, dtype=torch.float64)
    uniform = torch.rand(50, generator=gen, dtype=torch.float64)
    uniform[0], uniform[1] = 0.0, 1 - 2**-53
    expected = torch.searchsorted(logits.softmax(0).cumsum(0).t().contiguous(), uniform.unsqueeze(1), right=True)
    assert (draw(logits.clone(), uniform) == expected.squeeze(1).clamp_max(vocabulary - 1)).all()


def test_draw_never_takes_an_impossible_word() -> None:
    logits = torch.full((600, 2), -torch.inf)
    logits[[3, 300]] = 0.0
    assert draw(logits.clone(), torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)).tolist() == [3, 300]


def test_prompts_and_answers_must_fit_the_context() -> None:
    policy = load("tiny:1x32")
    policy.model.config.max_position_embeddings = 20
    assert policy.context == 20
    generate(policy, [[3] * 12], max_new_tokens=8)
    with pytest.raises(ValueError, match=r"prompt of 13 tokens and rollout.max_new_tokens = 8 exceed the model"):
        generate(policy, [[3] * 12, [3] * 13], max_new_tokens=8)


def test_a_character_outside_the_vocabulary_is_named() -> None:
    policy = load("tiny:1x32")
    example = Example(prompt="Sort: Ba", answer="", task="mine", index=0)
    with pytest.raises(ValueError, match=r"cannot encode 'Sort: Ba' .* not in its vocabulary: 'BS'"):
        encode(policy, [example])


@pytest.mark.parametrize("options", [{}, {"temperature": 0.0}])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_stop_the_sampling(options: dict[str, Any], value: float) -> None:
    policy = make("qwen3")
    with torch.no_grad():
        policy.model.model.layers[0].mlp.down_proj.weight[0, 0] = value
    with pytest.raises(FloatingPointError, match="the model's logits are not finite"):
        generate(policy, prompts(), max_new_tokens=3, **options)
