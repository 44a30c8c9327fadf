"""Responses without padding: the tokens of all of them in one flat tensor, and where each response ends.

Sums over a response are taken in float64, each on its own, and are the same on every run. Their gradient is a look-up,
by `index_select`: on a CPU it is four times as fast as `rows[row]`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fspo.objectives.primitives import with_gradient
from fspo.tensors import Tensor, torch


@dataclass(frozen=True)
class Packing:
    """B responses in N flat tokens, of which the trained ones are `kept` (all of them where that is None)."""

    counts: Tensor  # (B,) the kept tokens of each response
    kept: Tensor | None  # (N,) bool

    @classmethod
    def of(
        cls, tokens: int, mask: Tensor | None, segment_ids: Tensor | None, cu_seqlens: Tensor | Sequence[int] | None
    ) -> Packing:
        """From segment ids (N,), equal for the tokens of a response, or cumulative lengths (B + 1,) from 0 to N."""
        if (segment_ids is None) == (cu_seqlens is None):
            raise ValueError(
                "flat log-probs need either segment_ids (N,) or cu_seqlens (B + 1,), to say where a response ends"
            )
        if segment_ids is not None:
            segment_ids = torch.as_tensor(segment_ids)
            if tuple(segment_ids.shape) != (tokens,):
                raise ValueError(f"segment_ids must have the shape ({tokens},), not {tuple(segment_ids.shape)}")
            ids, counts = torch.unique_consecutive(segment_ids, return_counts=True)
        else:
            starts = torch.as_tensor(cu_seqlens).long()
            counts = starts.diff() if starts.dim() == 1 else starts
            if starts.dim() != 1 or len(starts) < 2 or int(starts[0]) or int(starts[-1]) != tokens or counts.min() < 0:
                raise ValueError(
                    f"cu_seqlens must rise from 0 to {tokens}, the number of tokens, not {starts.tolist()}"
                )
        if mask is not None:
            if mask.dtype != torch.bool or tuple(mask.shape) != (tokens,):
                raise ValueError(f"mask must be a bool tensor of shape ({tokens},); mask.bool() makes one")
            counts = cls(counts, None).sum(mask.to(counts.device))
        if segment_ids is not None and len(torch.unique(ids[counts > 0])) < int((counts > 0).sum()):
            raise ValueError("segment_ids come back to a response after another one: order the tokens by response")
        return cls(counts, mask)

    def to(self, device: Any) -> Packing:
        return Packing(self.counts.to(device), None if self.kept is None else self.kept.to(device))

    @functools.cached_property
    def row(self) -> Tensor:
        """The response of each kept token, in order."""
        return torch.repeat_interleave(self.counts)

    def take(self, tokens: Tensor) -> Tensor:
        """The kept ones of N tokens."""
        return tokens if self.kept is None else tokens[self.kept]

    def sum(self, tokens: Tensor) -> Tensor:
        """(B,) the sum of the kept tokens of each response, differentiable; of bool tokens, how many are on."""
        # `of` has checked the counts, which `unsafe` does not check again.
        kind = torch.int64 if tokens.dtype == torch.bool else tokens.dtype
        sums = torch.segment_reduce(tokens.detach().double(), "sum", lengths=self.counts, unsafe=True).to(kind)
        return with_gradient(tokens, sums, self.counts, lambda gradient, _: self.spread(gradient))

    def spread(self, rows: Tensor) -> Tensor:
        """(B,) -> one value per kept token."""
        return rows.index_select(0, self.row)


Tokens = dict[str, Any]


def laid_out(
    tokens: Tokens, mask: Any, segment_ids: Tensor | None, cu_seqlens: Tensor | Sequence[int] | None
) -> tuple[Tokens, Tensor | None, Packing | None]:
    """Per-token inputs of any form: padded as they are; a list or flat ones as flat trained tokens, with a packing."""
    logprobs = tokens["logprobs"]
    if isinstance(logprobs, list | tuple) and all(isinstance(row, torch.Tensor) for row in logprobs):
        if segment_ids is not None or cu_seqlens is not None:
            raise ValueError("a list of log-probs says where a response ends: leave segment_ids and cu_seqlens out")
        lengths = [row.numel() for row in logprobs]
        cu_seqlens = [0, *itertools.accumulate(lengths)]
        tokens = {name: _joined(name, rows, lengths) for name, rows in tokens.items()}
        mask = _joined("mask", mask, lengths)
    elif segment_ids is None and cu_seqlens is None:
        return tokens, mask, None
    flat = tokens["logprobs"]
    if not isinstance(flat, torch.Tensor) or flat.dim() != 1 or not len(flat):
        raise ValueError("packed log-probs must be one flat tensor (N,) with N > 0, or a list of (L,) tensors")
    for name, values in tokens.items():
        if values is not None and values.shape != flat.shape:
            raise ValueError(f"{name} has the shape {tuple(values.shape)} where logprobs have {tuple(flat.shape)}")
    packing = Packing.of(len(flat), mask, segment_ids, cu_seqlens).to(flat.device)
    return {name: values if values is None else packing.take(values) for name, values in tokens.items()}, None, packing


def _joined(name: str, rows: Any, lengths: list[int]) -> Any:
    if not isinstance(rows, list | tuple):
        return rows
    for row in rows:
        if not isinstance(row, torch.Tensor) or row.dim() != 1:
            kind = tuple(row.shape) if isinstance(row, torch.Tensor) else type(row).__name__
            raise ValueError(f"{name} must be a list of flat tensors (L,), one per response, not of {kind}")
    if [len(row) for row in rows] != lengths:
        raise ValueError(f"{name} has sequences of other lengths than logprobs: give one value per token")
    return torch.cat(list(rows)) if rows else torch.zeros(0)
