"""Log-probs and entropies without the full logits, against the full logits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fspo.model import forward
from fspo.model.forward import token_logprobs


@pytest.fixture(params=["kept", "again"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways: logits kept for the backward, and tiles (three of them here) computed again."""
    monkeypatch.setattr(forward, "TILE", 1)
    if request.param == "again":
        monkeypatch.setattr(forward, "KEEP", 0)
    return str(request.param)


def inputs(dtype: torch.dtype, n: int = 6, d: int = 5, v: int = 600) -> tuple[Tensor, Tensor, Tensor]:
    gen = torch.Generator().manual_seed(0)
    hidden = torch.randn(n, d, generator=gen, dtype=dtype).requires_grad_()
    weight = torch.randn(v, d, generator=gen, dtype=dtype).requires_grad_()
    return hidden, weight, torch.tensor([0, 255, 256, 511, 512, 599])[:n]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("entropy", [False, True])
def test_gradcheck(path: str, temperature: float, entropy: bool) -> None:
    hidden, weight, targets = inputs(torch.float64)

    def run(h: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return tuple(out for out in token_logprobs(h, w, targets, temperature, entropy) if out is not None)

    assert torch.autograd.gradcheck(run, (hidden, weight), fast_mode=True)


def test_equals_the_full_logits(path: str) -> None:
    hidden, weight, targets = inputs(torch.float32)
    upstream = torch.randn(6)
    got, entropy = token_logprobs(hidden, weight, targets, 0.8, with_entropy=True)
    full = (hidden @ weight.t() / 0.8).log_softmax(-1)
    torch.testing.assert_close(got, full.gather(1, targets.unsqueeze(1)).squeeze(1), rtol=0, atol=1e-5)
    torch.testing.assert_close(entropy, -(full.exp() * full).sum(-1), rtol=0, atol=1e-5)
    ours = torch.autograd.grad(got, (hidden, weight), upstream, retain_graph=True)
    again = torch.autograd.grad(got, (hidden, weight), upstream)
    assert all(torch.equal(a, b) for a, b in zip(ours, again, strict=True))
    theirs = torch.autograd.grad(full[torch.arange(6), targets], (hidden, weight), upstream)
    for a, b in zip(ours, theirs, strict=True):
        assert ((a - b).norm() / b.norm()).item() < 1e-5


def test_large_logits_neither_overflow_nor_lose_the_gradient(path: str) -> None:
    hidden, weight, targets = inputs(torch.float32)
    got, entropy = token_logprobs(hidden * 200, weight, targets, with_entropy=True)
    assert entropy is not None
    (got.sum() + entropy.sum()).backward()
    assert torch.isfinite(got).all()
    assert hidden.grad is not None
    assert weight.grad is not None
    assert torch.isfinite(hidden.grad).all()
    assert torch.isfinite(weight.grad).all()


def test_no_logits_are_kept_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, targets = inputs(torch.float32)
    monkeypatch.setattr(forward, "TILE", 1)
    sizes: list[int] = []
    tile = forward._logits

    def measured(scaled: Tensor, weight: Tensor, a: int, b: int, buffer: Tensor) -> Tensor:
        sizes.append(buffer.numel())
        return tile(scaled, weight, a, b, buffer)

    monkeypatch.setattr(forward, "_logits", measured)
    with torch.no_grad():
        token_logprobs(hidden, weight, targets)
    assert max(sizes) == 6 * 256
    token_logprobs(hidden, weight, targets)
    assert max(sizes) == 6 * 600
