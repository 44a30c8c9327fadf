"""Log-probs of chosen tokens from hidden states, without the (tokens, vocabulary) logits.

With h a token's hidden state, W the head, T the temperature and y the chosen token:

    z = W h / T          log p(y) = z_y - log sum_j exp z_j          H = log sum_j exp z_j - sum_j p_j z_j

For 2,048 tokens and a vocabulary of 151,936 the logits alone take 1.2 GB, and autograd keeps several copies. Here the
vocabulary is processed in tiles that fit into the processor's cache; the backward computes each tile again and turns it
into the gradient in place. If all tiles together are small (a small vocabulary, a short micro-batch), they are kept
instead, which saves the second product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

TILE = 1 << 22
"""Elements of one tile: 16 MB of float32, which fits into a shared cache."""

KEEP = 1 << 26
"""Up to this many logits (256 MB of float32) are kept for the backward; above it, tiles are computed again."""


def token_logprobs(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float = 1.0, with_entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Log-probs of `targets` (N,) and, with `with_entropy`, the entropy (N,) of the distribution of each.

    `hidden` is (N, D) and `weight` (V, D). Both results can be differentiated with respect to both.
    """
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}; log-probs need a temperature above 0")
    train = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    logprobs, entropy = _Head.apply(  # type: ignore[no-untyped-call]
        hidden, weight, targets, temperature, with_entropy, train
    )
    return logprobs, entropy if with_entropy else None


def _spans(n: int, vocabulary: int) -> list[tuple[int, int]]:
    width = max(256, TILE // max(n, 1))
    return [(a, min(a + width, vocabulary)) for a in range(0, vocabulary, width)]


def _logits(scaled: Tensor, weight: Tensor, a: int, b: int, buffer: Tensor) -> Tensor:
    """One tile of logits, (N, b - a), written to the start of `buffer`."""
    out = buffer[: scaled.shape[0] * (b - a)].view(scaled.shape[0], b - a)
    return torch.mm(scaled, weight[a:b].t(), out=out)


def _wide(tile: Tensor) -> Tensor:
    return tile if tile.dtype in (torch.float32, torch.float64) else tile.float()


class _Head(torch.autograd.Function):
    """Log-probs and entropies of all rows, with both gradients in closed form."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: float,
        entropy: bool,
        train: bool,
    ) -> tuple[Tensor, Tensor]:
        n, vocabulary = hidden.shape[0], weight.shape[0]
        scaled = hidden / temperature if temperature != 1.0 else hidden
        spans = _spans(n, vocabulary)
        keep = train and n * vocabulary <= KEEP
        buffer = hidden.new_empty(n * (vocabulary if keep else spans[0][1] - spans[0][0]))
        wide = torch.promote_types(hidden.dtype, torch.float32)
        top = torch.full((n, 1), -torch.inf, dtype=wide, device=hidden.device)
        total, moment = torch.zeros_like(top), torch.zeros_like(top)
        chosen = torch.zeros_like(top)
        for a, b in spans:
            z = _wide(_logits(scaled, weight, a, b, buffer[n * a :] if keep else buffer))
            local = (targets - a).unsqueeze(1)
            inside = (local >= 0) & (local < b - a)
            chosen = torch.where(inside, z.gather(1, local.clamp(0, b - a - 1)), chosen)
            new = torch.maximum(top, z.amax(1, keepdim=True))
            shrink = (top - new).exp()
            # The moment is sum e^(z - new) (z - new), which needs no second copy of the logits.
            z = z - new if keep else z.sub_(new)
            if entropy:
                # At the first tile `top` is -inf and `total` 0; their product must count as 0.
                moved = torch.where(total > 0, (top - new) * total, 0.0)
                e = z.exp()
                moment = shrink * (moment + moved) + (e * z).sum(1, keepdim=True)
                total = shrink * total + e.sum(1, keepdim=True)
            else:
                total = shrink * total + z.exp_().sum(1, keepdim=True)
            top = new
        lse = top + total.log()
        h = total.log() - moment / total if entropy else torch.zeros_like(lse)
        ctx.temperature, ctx.entropy = temperature, entropy
        ctx.save_for_backward(scaled, weight, targets, lse, h, buffer if keep else None)
        return (chosen - lse).squeeze(1), h.squeeze(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_entropy: Tensor) -> Any:
        """d log p(y) / dz_j = 1[j = y] - p_j and dH / dz_j = -p_j (log p_j + H)."""
        scaled, weight, targets, lse, h, kept = ctx.saved_tensors
        need_hidden, need_weight = ctx.needs_input_grad[:2]
        n, vocabulary = scaled.shape[0], weight.shape[0]
        dtype = scaled.dtype
        g = grad.unsqueeze(1).to(lse.dtype)
        gh = grad_entropy.unsqueeze(1).to(lse.dtype) if ctx.entropy else None
        d_hidden = torch.zeros(n, scaled.shape[1], dtype=lse.dtype, device=lse.device) if need_hidden else None
        d_weight = torch.empty_like(weight) if need_weight else None
        spans = _spans(n, vocabulary)
        buffer = scaled.new_empty(n * (spans[0][1] - spans[0][0])) if kept is None else None
        rows = torch.arange(n, device=targets.device)
        for a, b in spans:
            if buffer is None:
                p = (_wide(kept[n * a : n * b].view(n, b - a)) - lse).exp_()
            else:
                p = _wide(_logits(scaled, weight, a, b, buffer)).sub_(lse).exp_()
            tile = p * -g if gh is not None else p.mul_(-g)
            if gh is not None:
                # p log p tends to 0 with p; the clamp keeps an underflowed p from giving 0 * -inf.
                tile.sub_(p.clamp_min(1e-38).log_().add_(h).mul_(p).mul_(gh))
            picked = rows[(targets >= a) & (targets < b)]
            tile[picked, targets[picked] - a] += g[picked, 0]
            tile = tile.to(dtype)
            if d_hidden is not None:
                part = weight[a:b]
                if d_hidden.dtype == dtype:
                    d_hidden.addmm_(tile, part)
                else:
                    d_hidden += tile @ part
            if d_weight is not None:
                torch.mm(tile.t(), scaled, out=d_weight[a:b])
        if d_hidden is not None:
            d_hidden = (d_hidden / ctx.temperature if ctx.temperature != 1.0 else d_hidden).to(dtype)
        return d_hidden, d_weight, None, None, None, None
