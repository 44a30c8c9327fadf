"""Packed, listed and padded responses give the same value and gradient, at a cost that is linear in the tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fspo
from fspo.objectives import Objective, Output
from helpers.batches import Inputs, random_batch

OPTIONS: list[dict[str, Any]] = [
    {}, {"kl": {"coef": 0.2, "importance": True}}, {"entropy_coef": 0.1}, {"mismatch": {"c": 0.2}},
    {"mismatch": {"level": "token", "mode": "truncate", "high": 1.5}},
    {"mismatch": {"level": "geometric", "low": 0.9, "high": 1.1}},
]  # fmt: skip
LISTS = [[torch.zeros(k) for k in lengths] for lengths in ((1, 3), (3, 1))]  # of as many tokens
TOKENS = ("logprobs", "old_logprobs", "ref_logprobs", "sampler_logprobs", "entropy")


def call(objective: Objective, tokens: dict[str, Any], advantages: torch.Tensor, **layout: Any) -> Output:
    options = {name: tokens[name] for name in TOKENS[2:]}
    return objective(tokens["logprobs"], tokens["old_logprobs"], advantages, **layout, **options)


def padded(objective: Objective, batch: Inputs) -> tuple[Output, list[torch.Tensor]]:
    """The output, and the gradient of the trained tokens of each response."""
    logprobs = batch.logprobs.clone().requires_grad_()
    out = call(objective, vars(batch) | {"logprobs": logprobs}, batch.advantages, mask=batch.mask)
    (gradient,) = torch.autograd.grad(out.loss, logprobs)
    return out, [row[kept] for row, kept in zip(gradient, batch.mask, strict=True)]


def assert_same(ours: Output, gradient: torch.Tensor, theirs: tuple[Output, list[torch.Tensor]], rel: float) -> None:
    expected = torch.cat(theirs[1])
    size = float(expected.abs().max()) + 1e-12
    torch.testing.assert_close(ours.loss, theirs[0].loss, rtol=rel, atol=rel * size)
    torch.testing.assert_close(gradient, expected, rtol=rel, atol=rel * size)
    torch.testing.assert_close(ours.accepted, theirs[0].accepted, rtol=rel, atol=rel)
    assert torch.equal(ours.lengths, theirs[0].lengths)
    assert ours.metrics == pytest.approx(theirs[0].metrics, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", fspo.objectives.names())
@given(seed=st.integers(0, 10**6), option=st.sampled_from(OPTIONS), single=st.booleans())
def test_all_three_forms_agree(name: str, seed: int, option: dict[str, Any], single: bool) -> None:
    """In float32 and float64, with every option: only trained tokens, or all tokens with a mask."""
    dtype, rel = (torch.float32, 2e-5) if single else (torch.float64, 1e-10)
    objective, batch = fspo.objectives.get(name, **option), random_batch(seed, dtype)
    theirs = padded(objective, batch)
    rows = {key: [r[m] for r, m in zip(getattr(batch, key), batch.mask, strict=True)] for key in TOKENS}
    leaves = [row.clone().requires_grad_() for row in rows["logprobs"]]
    listed = call(objective, rows | {"logprobs": leaves}, batch.advantages)
    assert_same(listed, torch.cat(torch.autograd.grad(listed.loss, leaves)), theirs, rel)

    flat = {key: getattr(batch, key).reshape(-1).clone() for key in TOKENS}
    flat["logprobs"].requires_grad_()
    B, T = batch.mask.shape
    layouts: list[dict[str, Any]] = [
        {"segment_ids": torch.arange(B).repeat_interleave(T)},
        {"cu_seqlens": torch.arange(B + 1, dtype=torch.int32) * T},
    ]
    for layout in layouts:
        out = call(objective, flat, batch.advantages, mask=batch.mask.reshape(-1), **layout)
        (gradient,) = torch.autograd.grad(out.loss, flat["logprobs"])
        assert not gradient[~batch.mask.reshape(-1)].any()
        assert_same(out, gradient[batch.mask.reshape(-1)], theirs, rel)


@pytest.mark.parametrize("name", ["ppo", "grpo", "dapo", "cispo", "sapo", "reinforce"])
def test_tokens_may_have_advantages_of_their_own(name: str) -> None:
    objective, batch = fspo.objectives.get(name), random_batch(3)
    row = batch.advantages.unsqueeze(-1).expand_as(batch.logprobs).contiguous()
    one, same = (objective(batch.logprobs, batch.old_logprobs, A, batch.mask).loss for A in (batch.advantages, row))
    torch.testing.assert_close(one, same)
    own = torch.randn_like(batch.logprobs)
    cu = [0, *batch.mask.sum(-1).cumsum(0).tolist()]
    flat = [x[batch.mask] for x in (batch.logprobs, batch.old_logprobs, own)]
    theirs = objective(batch.logprobs, batch.old_logprobs, own, batch.mask)
    torch.testing.assert_close(objective(*flat, cu_seqlens=cu).loss, theirs.loss)


@pytest.mark.parametrize("empty", [0, 1, 2])
def test_a_response_without_tokens_counts_in_a_packed_batch(empty: int) -> None:
    objective, lengths = fspo.objectives.get("fspo"), [2, 1]
    lengths.insert(empty, 0)
    logprobs, old = torch.tensor([-1.0, -1.1, -0.9]), torch.tensor([-1.0, -1.0, -1.0])
    advantages, mask = torch.tensor([1.0, 5.0, -1.0]), torch.arange(2) < torch.tensor(lengths).unsqueeze(-1)
    out = objective(logprobs, old, advantages, cu_seqlens=[0, *torch.tensor(lengths).cumsum(0).tolist()])
    table = [torch.zeros(3, 2).masked_scatter(mask, x) for x in (logprobs, old)]
    torch.testing.assert_close(out.loss, objective(table[0], table[1], advantages, mask).loss)
    assert out.lengths.tolist() == lengths
    assert out.metrics["empty"] == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"cu_seqlens": [0, 2]}, r"cu_seqlens must rise from 0 to 4, the number of tokens, not \[0, 2\]"),
        ({"cu_seqlens": [0, 3, 2, 4]}, "cu_seqlens must rise from 0"),
        ({"cu_seqlens": [0, 4], "segment_ids": torch.zeros(4)}, "need either segment_ids"),
        ({"segment_ids": torch.zeros(3)}, r"segment_ids must have the shape \(4,\), not \(3,\)"),
        ({"cu_seqlens": [0, 2, 4], "mask": torch.ones(4)}, r"mask must be a bool tensor of shape \(4,\)"),
        ({"cu_seqlens": [0, 1, 2, 4]}, r"advantages must have the shape \(3,\), not \(2,\)"),
        ({"segment_ids": torch.tensor([0, 1, 0, 1])}, "segment_ids come back to a response"),
        ({"logprobs": LISTS[0], "old_logprobs": LISTS[1]}, "old_logprobs has sequences of other lengths than logprobs"),
        ({"cu_seqlens": [0, 2, 4], "ref_logprobs": torch.zeros(3)}, r"ref_logprobs has the shape \(3,\)"),
        ({"cu_seqlens": 4}, "cu_seqlens must rise from 0 to 4, the number of tokens, not 4"),
        ({"logprobs": LISTS[0], "old_logprobs": LISTS[0], "cu_seqlens": [0, 2, 4]}, "leave segment_ids and cu_seqlens"),
        ({"logprobs": [torch.zeros(1, 3)] * 2}, r"logprobs must be a list of flat tensors .* not of \(1, 3\)"),
        ({"logprobs": [torch.zeros(())] * 2}, r"logprobs must be a list of flat tensors .* not of \(\)"),
    ],
)
def test_bad_packing_is_one_clear_sentence(arguments: dict[str, Any], sentence: str) -> None:
    given = dict.fromkeys(("logprobs", "old_logprobs"), torch.zeros(4)) | {"advantages": torch.ones(2)} | arguments
    with pytest.raises(ValueError, match=sentence) as error:
        fspo.objectives.get("fspo")(**given)
    assert "\n" not in str(error.value)


def test_a_huge_value_stays_in_its_response() -> None:
    new = [torch.tensor([-3.4e38]), torch.tensor([-1.0, -1.0])]
    out = fspo.objectives.get("fspo")(new, [torch.tensor([-1.0]), torch.tensor([-1.5, -2.0])], torch.ones(2))
    assert out.log_ratio[1] == 1.5


def test_half_precision_penalties_are_summed_in_single() -> None:
    tokens, mask = torch.full((1, 40_000), -1.0, dtype=torch.float16), torch.ones(1, 40_000, dtype=torch.bool)
    bonus = fspo.objectives.get("fspo", entropy_coef=0.01)
    loss = bonus(tokens, tokens, torch.zeros(1), mask, entropy=torch.full_like(tokens, 2.0)).loss
    assert float(loss) == pytest.approx(-0.02)


@pytest.mark.slow
def test_packed_is_padded_in_single_precision() -> None:
    objective = fspo.objectives.get("fspo")
    for seed in range(1000):
        batch = random_batch(seed, torch.float32)
        flat, ids = batch.logprobs[batch.mask].requires_grad_(), batch.mask.nonzero()[:, 0]
        ours = objective(flat, batch.old_logprobs[batch.mask], batch.advantages, segment_ids=ids)
        theirs, gradient = padded(objective, batch)
        difference = torch.autograd.grad(ours.loss, flat)[0] - torch.cat(gradient)
        assert difference.norm() <= 1e-6 * torch.cat(gradient).norm()
        assert abs(ours.loss - theirs.loss) <= 1e-6 * batch.advantages.abs().mean()
