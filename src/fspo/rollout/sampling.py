"""How the next token is drawn: exact softmax sampling of one token per row, and the random numbers of each answer.

Logits are laid out (vocabulary, rows).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

BLOCK = 256  # words summed at once
WEYL = 0x9E3779B97F4A7C15 - 2**64  # the odd constants of splitmix64, as signed numbers
MULTIPLIERS = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))


def choose(logits: Tensor, uniform: Tensor, temperature: float) -> Tensor:
    """One token per row, from logits (vocabulary, rows) and a random number per row; `logits` is overwritten.

    Temperature 0 is greedy.
    """
    if temperature == 0:
        token = logits.argmax(0)
        _require_finite(logits.gather(0, token.unsqueeze(0)))
        return token
    return draw(logits.div_(temperature) if temperature != 1.0 else logits, uniform)


def uniforms(seed: int, answers: Tensor, start: Tensor, count: int) -> Tensor:
    """Numbers in [0, 1), (count, answers): those of each answer's stream from its position `start` on. Each is a
    function of seed, answer and position (splitmix64): an answer draws the same whatever is sampled beside it."""
    keys = _mix(_mix(torch.tensor(seed % 2**63, device=answers.device)) + answers * WEYL)
    position = start + torch.arange(1, count + 1, device=answers.device).unsqueeze(1)
    return _shift(_mix(keys + position * WEYL), 11).double().mul_(2.0**-53)


def _mix(z: Tensor) -> Tensor:
    for bits, factor in MULTIPLIERS:
        z = z.bitwise_xor(_shift(z, bits)) * factor
    return z.bitwise_xor(_shift(z, 31))


def _shift(z: Tensor, bits: int) -> Tensor:
    """The unsigned shift to the right of signed 64-bit numbers."""
    shifted: Tensor = (z >> bits) & (2 ** (64 - bits) - 1)
    return shifted


def draw(logits: Tensor, uniform: Tensor) -> Tensor:
    """Invert the cumulative distribution of each row at its uniform number; `logits` is overwritten. Sums are taken in
    float64, over blocks and then inside the block: a float32 sum over a large vocabulary would lose rare words."""
    highest = logits.amax(0)
    _require_finite(highest)
    p = logits.sub_(highest).exp_()
    vocabulary, rows = p.shape
    whole = vocabulary // BLOCK * BLOCK
    if vocabulary <= 2 * BLOCK:
        return _invert(p.double(), uniform * p.sum(0, dtype=torch.float64))
    sums = p[:whole].view(-1, BLOCK, rows).sum(1).double()
    if whole < vocabulary:
        sums = torch.cat((sums, p[whole:].sum(0, keepdim=True).double()))
    target = uniform * sums.sum(0)
    block = _invert(sums, target)
    before = torch.where(block > 0, sums.cumsum(0).gather(0, (block - 1).clamp_min(0).unsqueeze(0))[0], 0.0)
    offsets = torch.arange(BLOCK, device=p.device).unsqueeze(1)
    index = (block * BLOCK + offsets).clamp_max(vocabulary - 1)
    inside = p.gather(0, index).double().masked_fill_(block * BLOCK + offsets >= vocabulary, 0.0)
    return block * BLOCK + _invert(inside, target - before)


def _require_finite(highest: Tensor) -> None:
    """Refuse logits of which the largest of a row is not finite: one NaN makes it NaN."""
    if not math.isfinite(highest.sum().item()):
        raise FloatingPointError(
            "the model's logits are not finite, because weights of it are NaN or too large: lower the learning rate, "
            "then go on from an earlier checkpoint or start again"
        )


def _invert(p: Tensor, target: Tensor) -> Tensor:
    """The first index whose running sum exceeds `target`; if rounding leaves none, the last positive entry."""
    index = (p.cumsum(0) <= target).sum(0)
    last = p.shape[0] - 1 - (p > 0).flip(0).to(torch.uint8).argmax(0)
    return torch.minimum(index, last)
