"""The input of an objective: one checked batch, and the totals of the whole batch it is a part of.

Symbols, as everywhere in this package: B responses, T positions, L the trained tokens of a response,
l the token log-ratio (B, T), S = sum of l over a response (B,), A the advantage.
A packed batch has flat tokens (N,) in the place of (B, T), and nothing masked out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from typing import Any

from fspo.objectives.packing import Packing, laid_out
from fspo.tensors import Tensor, torch


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
    def of(
        cls, logprobs: Any, old_logprobs: Any, mask: Any = None, *, segment_ids: Any = None, cu_seqlens: Any = None
    ) -> Totals:
        """The totals of a batch of log-probs, in any form that an objective takes."""
        given = {"logprobs": logprobs, "old_logprobs": old_logprobs}
        given, mask, packing = laid_out(given, mask, segment_ids, cu_seqlens)
        counts: Any = mask if packing is None else packing.counts
        with torch.no_grad():
            zeros = torch.zeros(0 if counts is None else len(counts), device=given["logprobs"].device)
            totals = Batch.check(**given, advantages=zeros, mask=mask, packing=packing).totals
        return replace(totals, tokens=float(counts.sum()))

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

    logprobs: Tensor  # (B, T), or (N,) if packed; half precision widened
    token_log_ratio: Tensor  # (B, T) l, 0 where masked out, differentiable
    log_ratio: Tensor  # (B,) S, differentiable
    lengths: Tensor  # (B,) L
    advantages: Tensor  # (B,), or (B, T) for objectives that work on tokens
    mask: Tensor | None  # (B, T) bool; None if packed
    totals: Totals
    staleness: int
    empty: Tensor | None = None  # (B,) bool: responses without a trained token, if there are any
    packing: Packing | None = None

    @classmethod
    def check(
        cls,
        logprobs: Tensor,
        old_logprobs: Tensor,
        advantages: Tensor,
        mask: Tensor | None = None,
        totals: Totals | None = None,
        staleness: int = 0,
        packing: Packing | None = None,
    ) -> Batch:
        """With a `packing`, log-probs are flat and hold trained tokens only; otherwise they are padded, with a mask."""
        for name, value in {"logprobs": logprobs, "old_logprobs": old_logprobs, "advantages": advantages}.items():
            if not isinstance(value, torch.Tensor) or not value.is_floating_point():
                raise ValueError(f"{name} must be a floating-point tensor, not {_kind(value)}")
        if packing is None:
            _check_padded(logprobs, old_logprobs, advantages, mask)
        logprobs = widened(logprobs)
        l = logprobs - widened(old_logprobs.detach())
        if packing is None:
            assert mask is not None
            l = masked(l, mask)
            S, lengths = l.sum(-1), row_count(mask)
        else:
            S, lengths = packing.sum(l), packing.counts
            _check_advantages(advantages, len(S), l.shape)
        lengths, advantages = lengths.to(S.dtype), advantages.detach().to(S.dtype)
        row_advantages = advantages
        if advantages.shape != S.shape:
            row_advantages = packing.sum(advantages) if packing is not None else masked(advantages, mask).sum(-1)
        # One transfer to the host, where sums are in float64 and a bad row can be named.
        s, n, a = torch.stack([S.detach(), lengths, row_advantages]).cpu().double()
        empty = None
        if (n == 0).any():
            empty, a = lengths == 0, torch.where(n == 0, 0.0, a)
            if advantages.shape == S.shape or packing is None:  # no token has the advantage of an empty packed response
                advantages = advantages.masked_fill(empty if advantages.dim() == 1 else empty.unsqueeze(-1), 0.0)
            lengths = lengths.clamp(min=1)
        _check_rows(torch.isfinite(s), "log-probs of row {row} hold NaN or inf inside the mask")
        _check_rows(torch.isfinite(a), "advantages of row {row} hold NaN or inf")
        if totals is None:
            totals = Totals(len(s), float(n.sum()) or 1.0, float(s.sum()))
        return cls(logprobs, l, S, lengths, advantages, mask, totals, staleness, empty, packing)

    @property
    def by_token(self) -> bool:
        """Whether every token has an advantage of its own."""
        return self.advantages.shape != self.log_ratio.shape

    @property
    def token_advantages(self) -> Tensor:
        """One per token; of padded tokens (B, 1) where the tokens of a response share one."""
        return self.to_tokens(self.advantages)

    def to_tokens(self, values: Tensor) -> Tensor:
        """Values per response spread over tokens; values per token as they are."""
        return values if self.by_token else self.spread(values)

    @property
    def row_advantages(self) -> Tensor:
        """(B,), for an objective that weighs whole responses."""
        if self.by_token:
            raise ValueError("this objective weighs whole responses: give advantages of shape (B,), not one per token")
        return self.advantages

    def spread(self, rows: Tensor) -> Tensor:
        """(B,) over the tokens of each response: (B, 1) of padded tokens, else (N,)."""
        return rows.unsqueeze(-1) if self.packing is None else self.packing.spread(rows)

    def row_sum(self, tokens: Tensor, *, zeroed: bool = False) -> Tensor:
        """(B,) the sum over the trained tokens of each response.

        Masked-out positions may hold anything, unless they are `zeroed`: they hold 0.
        """
        if self.packing is not None:
            return self.packing.sum(tokens)
        return tokens.sum(-1) if zeroed else masked(tokens, self.mask).sum(-1)

    def share(self, tokens: Tensor) -> Tensor:
        """(B,): the mean over each response's trained tokens; of a bool tensor, the share that is True."""
        if tokens.dtype == torch.bool:
            if not tokens.any():
                return torch.zeros_like(self.lengths)
            if self.packing is None:
                assert self.mask is not None
                return row_count(tokens & self.mask) / self.lengths
        return self.row_sum(tokens) / self.lengths

    def mean(self, rows: Tensor) -> float:
        """Over the responses with a trained token; 0 if there is none."""
        rows = rows if self.empty is None else rows[~self.empty]
        return float(rows.mean()) if len(rows) else 0.0

    def share_(self, tokens: Tensor) -> Tensor:
        """`share`, in place."""
        return self.row_sum(self.mask_(tokens), zeroed=True) / self.lengths

    def mask_(self, tokens: Tensor) -> Tensor:
        """The tokens with 0 where masked out, in place."""
        return tokens if self.mask is None else tokens.masked_fill_(~self.mask, 0)


def row_count(marks: Tensor) -> Tensor:
    """(B, T) bool -> (B,): how many are on. Float32 is exact up to 2^24, at half the memory of an integer sum."""
    return marks.sum(-1, dtype=torch.float32)


def masked(values: Tensor, mask: Tensor | None) -> Tensor:
    """0 where the mask is off. Never a product: inf or nan times zero would stay."""
    assert mask is not None
    return torch.where(mask, values, 0.0)


def widened(values: Tensor) -> Tensor:
    """Half precision as float32: sums over thousands of tokens need it."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


class NotFiniteError(ValueError):
    """A response has NaN or infinite log-probs or advantages."""


def _check_rows(good: Tensor, sentence: str) -> None:
    if not good.all():
        raise NotFiniteError(sentence.format(row=int((~good).nonzero()[0])))


def _check_padded(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Any) -> None:
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
        raise ValueError(f"mask must be a bool tensor, not {_kind(mask)}; mask.bool() makes one")
    if logprobs.dim() != 2 or not logprobs.numel():
        raise ValueError(f"logprobs must have the shape (B, T) with B, T > 0, not {tuple(logprobs.shape)}")
    shape = tuple(logprobs.shape)
    for name, value in {"old_logprobs": old_logprobs, "mask": mask}.items():
        if value.shape != logprobs.shape:
            raise ValueError(f"{name} must have the shape of logprobs, {shape}, not {tuple(value.shape)}")
    _check_advantages(advantages, shape[0], logprobs.shape)


def _check_advantages(advantages: Tensor, responses: int, tokens: Any) -> None:
    """One per response, or one per (trained, if packed) token."""
    if advantages.shape not in ((responses,), tokens):
        fix = "; advantages.squeeze(-1) makes it" if advantages.shape == (responses, 1) else ""
        raise ValueError(f"advantages must have the shape ({responses},), not {tuple(advantages.shape)}{fix}")


def _kind(value: object) -> str:
    return str(value.dtype) if isinstance(value, torch.Tensor) else type(value).__name__
