"""vLLM draws from the same distribution as the package's own forward, before and after the weights change."""

from __future__ import annotations

import itertools
import os

import pytest
import torch
from peft import LoraConfig, get_peft_model
from scipy import stats

from fspo.model.forward import logprobs
from fspo.model.loading import Policy
from fspo.rollout.generate import Rollout, generate
from fspo.rollout.vllm_sampler import VllmSampler
from helpers.twelve_words import VOCABULARY, build

pytestmark = pytest.mark.xdist_group("sampler")  # one engine for all of them

PROMPTS = [[5, 6, 7, 8, 9], [3, 4], [2, 11, 3, 3, 10, 4, 9, 9, 7, 5]]


def exact(policy: Policy, prompt: list[int], length: int, temperature: float) -> torch.Tensor:
    """Probabilities of every continuation of `length` words, in the order of itertools.product."""
    words = list(itertools.product(range(VOCABULARY), repeat=length))
    with torch.no_grad():
        ids = torch.tensor([[*prompt, *w] for w in words])
        logits = policy.model(ids[:, :-1], use_cache=False).logits[:, len(prompt) - 1 :].double() / temperature
        found: torch.Tensor = logits.log_softmax(-1).gather(2, torch.tensor(words).unsqueeze(2)).sum((1, 2)).exp()
    return found


@pytest.mark.parametrize(("length", "n"), [(1, 6000), (3, 12_000)])
def test_samples_follow_the_exact_distribution(
    sampler: VllmSampler, policy: Policy, length: int, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chi-square of the first word, and of the first three, against products of softmax probabilities."""
    monkeypatch.setattr(sampler, "eos_ids", ())
    temperature = 1.3
    got = sampler.generate(PROMPTS[:1], n, max_new_tokens=length, temperature=temperature, seed=5)
    places = [sum(w * VOCABULARY ** (length - 1 - i) for i, w in enumerate(c)) for c in got.completions]
    counts = torch.bincount(torch.tensor(places), minlength=VOCABULARY**length).double()
    expected = exact(policy, PROMPTS[0], length, temperature) * n
    common = expected >= 5
    assert common.sum() > (8 if length == 1 else 100)
    observed = [*counts[common].tolist(), counts[~common].sum().item()]
    wanted = [*expected[common].tolist(), expected[~common].sum().item()]
    if not wanted[-1]:
        observed, wanted = observed[:-1], wanted[:-1]
    assert stats.chisquare(observed, [w * sum(observed) / sum(wanted) for w in wanted]).pvalue > 1e-3


def gap(sampler: VllmSampler, policy: Policy, temperature: float = 0.8) -> tuple[float, Rollout]:
    """The largest difference between vLLM's log-probs of what it sampled and ours."""
    group = [g for g in range(len(PROMPTS)) for _ in range(8)]
    answers = sampler.answers(PROMPTS, group, max_new_tokens=24, temperature=temperature, seed=1, logprobs=True)
    got = Rollout(PROMPTS, [a["tokens"] for a in answers], group, [a["finished"] for a in answers])
    with torch.no_grad():
        out = logprobs(policy, got.batch(), temperature)
    theirs = torch.zeros_like(out.logprobs)
    for i, answer in enumerate(answers):
        theirs[i, : len(answer["logprobs"])] = torch.tensor(answer["logprobs"])
    return (theirs - out.logprobs).abs().max().item(), got


def test_a_rollout_carries_log_probs_where_they_are_wanted(
    sampler: VllmSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sampler.generate(PROMPTS, 2, max_new_tokens=5, temperature=1.0, seed=0).logprobs is None
    monkeypatch.setattr(sampler, "logprobs", True)
    got = sampler.generate(PROMPTS, 2, max_new_tokens=5, temperature=1.0, seed=0)
    assert got.logprobs is not None
    assert [len(values) for values in got.logprobs] == [len(completion) for completion in got.completions]


def test_log_probs_are_ours(sampler: VllmSampler, policy: Policy) -> None:
    largest, got = gap(sampler, policy)
    assert got.tokens > 100
    assert largest < 1e-4


def test_rollouts_carry_log_probs_on_request(sampler: VllmSampler, monkeypatch: pytest.MonkeyPatch) -> None:
    """One per token, as `objective.mismatch` needs them."""
    plain = sampler.generate(PROMPTS, 4, max_new_tokens=12, temperature=0.8, seed=2)
    monkeypatch.setattr(sampler, "logprobs", True)
    got = sampler.generate(PROMPTS, 4, max_new_tokens=12, temperature=0.8, seed=2)
    assert plain.logprobs is None
    assert got.completions == plain.completions
    assert got.logprobs is not None
    assert [len(row) for row in got.logprobs] == [len(c) for c in got.completions]
    assert all(value <= 0 for row in got.logprobs for value in row)


@pytest.mark.parametrize("lora", [False, True])
def test_answers_follow_new_weights(sampler: VllmSampler, policy: Policy, lora: bool) -> None:
    """Log-probs and the likeliest answers are those of the new weights after `sync`, and not before."""
    moved = build(0 if lora else 1)
    if lora:
        moved.model = get_peft_model(moved.model, LoraConfig(r=4, target_modules="all-linear")).eval()
        with torch.no_grad():
            for p in moved.trainable():
                p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    before = [p.clone() for p in moved.model.parameters()]
    assert gap(sampler, moved)[0] > 0.1
    sampler.sync(moved)
    assert gap(sampler, moved)[0] < 1e-4
    greedy = [a["tokens"] for a in sampler.answers(PROMPTS, [0, 1, 2], max_new_tokens=24, temperature=0.0, seed=0)]
    ours, old = (generate(p, PROMPTS, max_new_tokens=24, temperature=0.0, evaluation=True) for p in (moved, policy))
    assert greedy == ours.completions
    assert greedy != old.completions
    assert all(torch.equal(a, b) for a, b in zip(before, moved.model.parameters(), strict=True))


def test_the_same_seed_gives_the_same_answers_and_another_does_not(sampler: VllmSampler) -> None:
    a, b, c = (sampler.generate(PROMPTS, 6, max_new_tokens=20, temperature=1.0, seed=s) for s in (1, 1, 2))
    assert a == b
    assert a.completions != c.completions
    assert len({tuple(x) for x in a.completions}) > 12  # members of a group differ


def test_completions_end_with_their_only_end_token_or_at_the_limit(
    sampler: VllmSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "eos_ids", (1, 7))
    got = sampler.generate(PROMPTS, 20, max_new_tokens=12, temperature=1.0, seed=7)
    assert any(got.finished)
    assert not all(got.finished)
    assert got.group == [g for g in range(3) for _ in range(20)]
    for completion, finished in zip(got.completions, got.finished, strict=True):
        assert not {1, 7} & set(completion[:-1])
        assert (completion[-1] in (1, 7)) == finished
        assert finished or len(completion) == 12


def test_the_trainer_keeps_its_cores_and_threads(sampler: VllmSampler) -> None:
    assert os.sched_getaffinity(0) == os.sched_getaffinity(os.getppid())
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    assert torch.get_num_threads() == threads + 1
    torch.set_num_threads(threads)


def test_training_needs_a_temperature(sampler: VllmSampler) -> None:
    with pytest.raises(ValueError, match="temperature is 0"):
        sampler.generate(PROMPTS, 1, max_new_tokens=3, temperature=0.0, seed=0)


def test_a_refusal_of_vllm_is_reported_and_the_engine_goes_on(sampler: VllmSampler) -> None:
    with pytest.raises(ValueError, match="exceed the model's context of 256 tokens"):
        sampler.generate([[3] * 300], 1, max_new_tokens=3, temperature=1.0, seed=0)
    with pytest.raises(RuntimeError, match=r"vLLM failed to generate: .*vllm\.log"):
        sampler.answers([[3] * 300], [0], max_new_tokens=3, temperature=1.0, seed=0)  # past our own check
    assert len(sampler.generate(PROMPTS, 2, max_new_tokens=3, temperature=1.0, seed=0).completions) == 6
