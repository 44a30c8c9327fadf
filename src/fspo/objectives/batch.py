"""The input of an objective: one checked batch, and the totals of the whole batch it is a part of.

Symbols, as everywhere in this package: B responses, T positions, L the trained tokens of a response,
l the token log-ratio (B, T), S = sum of l over a response (B,), A the advantage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING

from fspo.tensors import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Totals:
    """Sums over the whole batch that a loss divides by, or takes its drift from.

    All of them are plain sums: totals of micro-batches, accumulation steps or ranks are added (`a + b`, or an
    all-reduce of `vector()`), and every part of the batch is then given the same totals.

    >>> import torch, fspo
    >>> logprobs, old, mask = torch.full((2, 3), -1.0), torch.full((2, 3), -1.5), torch.ones(2, 3, dtype=torch.bool)
    >>> first, second = (fspo.Totals.of(logprobs[i], old[i], mask[i]) for i in (slice(0, 1), slice(1, 2)))
    >>> whole = first + second
    >>> whole.sequences, whole.tokens, whole.drift
    (2, 6.0, 0.5)
    """

    sequences: float
    tokens: float
    log_ratio: float = math.nan  # sum of S

    @classmethod
    def of(cls, logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Totals:
        """The totals of a batch of log-probs."""
        with torch.no_grad():
            zeros = torch.zeros(len(mask), device=mask.device)
            return replace(Batch.check(logprobs, old_logprobs, zeros, mask).totals, tokens=float(mask.sum()))

    @classmethod
    def from_vector(cls, values: Iterable[float]) -> Totals:
        return cls(*(float(value) for value in values))

    def vector(self) -> list[float]:
        """The sums in a fixed order, to be all-reduced."""
        return list(astuple(self))

    def __add__(self, other: Totals) -> Totals:
        return Totals(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def drift(self) -> float:
        """mu = mean of l over all tokens (k1)."""
        if math.isnan(self.log_ratio):
            raise ValueError(
                "these totals hold counts only, and a drift taken from the data needs the sum of the log-ratios too: "
                "make them with Totals.of(logprobs, old_logprobs, mask) and add the parts"
            )
        return self.log_ratio / self.tokens


@dataclass(frozen=True)
class Batch:
    """Checked inputs. Masked-out positions hold 0, whatever stood there.

    A response without a trained token, as a truncated one that is masked out, counts in the totals' sequences and has
    no gradient: its S and advantage are 0, and its length here is 1 so that nothing is divided by 0.
    """

    logprobs: Tensor  # (B, T) as given, half precision widened
    token_log_ratio: Tensor  # (B, T) l, 0 where masked out, differentiable
    log_ratio: Tensor  # (B,) S, differentiable
    lengths: Tensor  # (B,) L
    advantages: Tensor  # (B,), or (B, T) for objectives that work on tokens
    mask: Tensor  # (B, T) bool
    totals: Totals
    staleness: int
    empty: Tensor | None = None  # (B,) bool: responses without a trained token, if there are any

    @classmethod
    def check(
        cls,
        logprobs: Tensor,
        old_logprobs: Tensor,
        advantages: Tensor,
        mask: Tensor,
        totals: Totals | None = None,
        staleness: int = 0,
    ) -> Batch:
        _check_shapes(logprobs, old_logprobs, advantages, mask)
        logprobs = _widened(logprobs)
        l = masked(logprobs - _widened(old_logprobs.detach()), mask)
        S = l.sum(-1)
        lengths = row_count(mask).to(S.dtype)
        advantages = advantages.detach().to(S.dtype)
        row_advantages = advantages if advantages.dim() == 1 else masked(advantages, mask).sum(-1)
        # One transfer to the host, where sums are in float64 and a bad row can be named.
        s, n, a = torch.stack([S.detach(), lengths, row_advantages]).cpu().double()
        empty = None
        if (n == 0).any():
            empty, a = lengths == 0, torch.where(n == 0, 0.0, a)
            advantages = advantages.masked_fill(empty if advantages.dim() == 1 else empty.unsqueeze(-1), 0.0)
            lengths = lengths.clamp(min=1)
        _check_rows(torch.isfinite(s), "log-probs of row {row} hold NaN or inf inside the mask")
        _check_rows(torch.isfinite(a), "advantages of row {row} hold NaN or inf")
        if totals is None:
            totals = Totals(len(s), float(n.sum()) or 1.0, float(s.sum()))
        return cls(logprobs, l, S, lengths, advantages, mask, totals, staleness, empty)

    @property
    def token_advantages(self) -> Tensor:
        """(B, T), or (B, 1) to be spread over the tokens of a response."""
        return self.advantages if self.advantages.dim() == 2 else self.advantages.unsqueeze(-1)

    @property
    def row_advantages(self) -> Tensor:
        """(B,), for an objective that weighs whole responses."""
        if self.advantages.dim() == 2:
            raise ValueError("this objective weighs whole responses: give advantages of shape (B,), not (B, T)")
        return self.advantages

    def share(self, tokens: Tensor) -> Tensor:
        """(B,): the share of each response's trained tokens that a (B, T) tensor marks, or its mean over them."""
        if tokens.dtype == torch.bool:
            return row_count(tokens & self.mask) / self.lengths if tokens.any() else torch.zeros_like(self.lengths)
        return masked(tokens, self.mask).sum(-1) / self.lengths

    def share_(self, tokens: Tensor) -> Tensor:
        """`share` of a (B, T) tensor that is not needed any more: it is overwritten, and no other is made."""
        return tokens.masked_fill_(~self.mask, 0).sum(-1) / self.lengths


def row_count(marks: Tensor) -> Tensor:
    """(B, T) bool -> (B,): how many are on. Float32 is exact up to 2^24, at half the memory of an integer sum."""
    return marks.sum(-1, dtype=torch.float32)


def masked(values: Tensor, mask: Tensor) -> Tensor:
    """0 where the mask is off. Never a product: inf or nan times zero would stay."""
    return torch.where(mask, values, 0.0)


def _widened(values: Tensor) -> Tensor:
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def _check_rows(good: Tensor, sentence: str) -> None:
    if not good.all():
        raise ValueError(sentence.format(row=int((~good).nonzero()[0])))


def _check_shapes(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor) -> None:
    for name, value in {"logprobs": logprobs, "old_logprobs": old_logprobs, "advantages": advantages}.items():
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            raise ValueError(f"{name} must be a floating-point tensor, not {_kind(value)}")
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
        raise ValueError(f"mask must be a bool tensor, not {_kind(mask)}; mask.bool() makes one")
    if logprobs.dim() != 2 or not logprobs.numel():
        raise ValueError(f"logprobs must have the shape (B, T) with B, T > 0, not {tuple(logprobs.shape)}")
    shape = tuple(logprobs.shape)
    for name, value in {"old_logprobs": old_logprobs, "mask": mask}.items():
        if value.shape != logprobs.shape:
            raise ValueError(f"{name} must have the shape of logprobs, {shape}, not {tuple(value.shape)}")
    if advantages.shape not in (logprobs.shape[:1], logprobs.shape):
        fix = "; advantages.squeeze(-1) makes it" if advantages.shape == (shape[0], 1) else ""
        raise ValueError(f"advantages must have the shape ({shape[0]},), not {tuple(advantages.shape)}{fix}")


def _kind(value: object) -> str:
    return str(value.dtype) if isinstance(value, torch.Tensor) else type(value).__name__
