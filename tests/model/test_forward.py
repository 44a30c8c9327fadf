"""Log-probs and gradients of the packed forward, against Hugging Face's forward of one sequence at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fspo.model import attention
from fspo.model.answers import Answers, split
from fspo.model.forward import family, logprobs, rms_norm
from fspo.model.loading import Policy
from helpers.policies import MODELS, make, make_gpt2, ragged, reference


def gradients(policy: Policy) -> torch.Tensor:
    flat = torch.cat([p.grad.flatten() for p in policy.trainable() if p.grad is not None])
    policy.model.zero_grad()
    return flat


def compare(policy: Policy, batch: Answers, values: float, grads: float, temperature: float = 0.7) -> None:
    """Values, and gradients of a sum with a different weight per token, against one sequence at a time."""
    out = logprobs(policy, batch, temperature)
    assert out.mask.sum(1).tolist() == batch.lengths
    assert (out.logprobs[~out.mask] == 0).all()
    weights = torch.randn(out.logprobs.shape, generator=torch.Generator().manual_seed(1), dtype=out.logprobs.dtype)
    (out.logprobs * weights).sum().backward()
    ours = gradients(policy)
    rows = reference(policy, batch, temperature)
    torch.stack([(r * w[: len(r)]).sum() for r, w in zip(rows, weights, strict=True)]).sum().backward()
    theirs = gradients(policy)
    for row, r in zip(out.logprobs, rows, strict=True):
        torch.testing.assert_close(row[: len(r)], r, rtol=0, atol=values)
    assert ((ours - theirs).norm() / theirs.norm()).item() < grads


@pytest.mark.parametrize("name", list(MODELS))
def test_values_and_gradients_equal_hugging_face(name: str) -> None:
    for seed in (0, 1, 2):
        compare(make(name), ragged(seed), values=2e-5, grads=1e-5)
    # transformers computes norms and rotary angles in float32 whatever the model's dtype, which leaves about 1e-6
    compare(make(name, torch.float64), ragged(3), values=2e-6, grads=1e-6)


def test_many_blocks_equal_one(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, batch = make("qwen3"), ragged(4, prompts=8, longest=60)
    whole = logprobs(policy, batch).logprobs
    monkeypatch.setattr(attention, "SMALL", 0)
    monkeypatch.setattr(attention, "CLOSE", 1.0)
    torch.testing.assert_close(logprobs(policy, batch).logprobs, whole, rtol=0, atol=1e-5)
    compare(policy, batch, values=2e-5, grads=1e-5)


@pytest.mark.parametrize("name", list(MODELS))
def test_sequences_without_a_mask_equal_hugging_face(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "LONG", 1)  # every sequence that is at least as long as its prompt
    compare(make(name), ragged(2), values=2e-5, grads=1e-5)


def test_a_long_answer_needs_memory_in_proportion_to_its_length() -> None:
    """The plan of 4,096 tokens holds indices only: a mask would take 64 MB."""
    layout = attention.plan([(0, 30, 0, 0), (30, 4096, 0, 30)], 4126, torch.float32, torch.device("cpu"))
    held = [t for b in layout.blocks for t in (b.queries, b.keys, b.padding, b.mask) if t is not None]
    assert sum(t.nbytes for t in held) < 100 * 4126
    at_once = attention.plan([(0, 255, 0, 0), (255, 255, 0, 255)], 510, torch.float32, torch.device("cpu"))
    assert all(b.mask is not None for b in at_once.blocks)


@pytest.mark.parametrize("long", [attention.LONG, 4])
def test_the_plain_attention_of_other_devices_equals_that_of_the_cpu(
    long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "LONG", long)  # with masks only, and with long sequences that need none
    policy, batch = make("qwen3"), ragged(5)
    expected = logprobs(policy, batch).logprobs
    monkeypatch.setattr("fspo.model.forward.attend", attention._attend_plainly)
    torch.testing.assert_close(logprobs(policy, batch).logprobs, expected, rtol=0, atol=2e-5)
    compare(policy, batch, values=2e-5, grads=1e-5)


def test_the_prompt_is_computed_once_for_its_group() -> None:
    policy = make("llama")
    seen: list[int] = []
    policy.model.model.layers[0].mlp.down_proj.register_forward_hook(lambda m, i, o: seen.append(i[0].shape[0]))
    logprobs(policy, Answers([[5] * 30], [[3, 4, 1]] * 8, [0] * 8))
    assert seen == [30 + 8 * 2]


def test_entropy_equals_the_full_distribution() -> None:
    policy, batch = make("qwen2"), ragged(6)
    out = logprobs(policy, batch, 1.3, with_entropy=True)
    g, completion = batch.group[1], batch.completions[1]
    ids = torch.tensor([[*batch.prompts[g], *completion]])
    logp = (policy.model(ids).logits[0, len(batch.prompts[g]) - 1 : -1] / 1.3).log_softmax(-1)
    assert out.entropy is not None
    expected = -(logp.exp() * logp).sum(-1)
    torch.testing.assert_close(out.entropy[1, : len(completion)], expected, rtol=0, atol=1e-5)


def test_what_the_package_does_not_compute_is_not_trained() -> None:
    from peft import LoraConfig, inject_adapter_in_model

    adapted, biased, sliding = make("llama"), make("llama"), make("qwen2")
    inject_adapter_in_model(LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False), adapted.model)
    biased.model.model.layers[0].mlp.up_proj.bias = torch.nn.Parameter(torch.zeros(48))
    sliding.model.config.layer_types = ["full_attention", "sliding_attention"]
    for policy in (make_gpt2(), adapted, biased, sliding):
        assert family(policy) is None
        with pytest.raises(ValueError, match=r"does not train .*: use a Llama, Qwen2 or Qwen3 without adapters"):
            logprobs(policy, ragged(9))


def test_rms_norm_gradient() -> None:
    x = torch.randn(3, 4, 6, dtype=torch.float64, requires_grad=True)
    w = torch.randn(6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: rms_norm(a, b, 1e-5), (x, w))


@pytest.mark.parametrize("budget", [1, 30, 60, 10_000])
def test_split_covers_the_batch_within_the_budget(budget: int) -> None:
    batch = ragged(11, prompts=6)
    pieces = split(batch, budget)
    assert sorted(torch.cat([i for _, i in pieces]).tolist()) == list(range(len(batch)))
    for piece, indices in pieces:
        assert [list(c) for c in piece.completions] == [list(batch.completions[i]) for i in indices]
        assert [piece.prompts[g] for g in piece.group] == [batch.prompts[batch.group[i]] for i in indices]
        size = piece.tokens + sum(map(len, piece.prompts))
        assert size <= budget or len(piece) == 1
    if budget == 10_000:
        assert len(pieces) == 1


def test_groups_that_fit_stay_together() -> None:
    batch = Answers([[2] * 10, [3] * 10], [[4] * 5] * 8, [0, 1] * 4)
    assert [sorted(i.tolist()) for _, i in split(batch, 30)] == [[0, 2, 4, 6], [1, 3, 5, 7]]


@pytest.mark.parametrize(
    ("prompts", "completions", "group"),
    [([[1]], [[]], [0]), ([[]], [[1]], [0]), ([[1]], [[1], [2]], [0]), ([[1]], [], [])],
)
def test_a_malformed_batch_is_refused(prompts: Any, completions: Any, group: Any) -> None:
    with pytest.raises(ValueError, match=r"group indices|is empty"):
        Answers(prompts, completions, group)
