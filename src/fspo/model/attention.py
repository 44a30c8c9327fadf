"""Attention over packed tokens, where the completions of a group attend to one copy of their prompt.

The packed order is all prompts, then all completions, without padding: the linear layers compute real tokens only. For
attention alone, sequences are gathered into padded blocks of similar length. All completions of a group read the same
prompt keys, and their gradients are summed into that one copy.

A block of long sequences holds prompt and completion as queries and as keys: it needs no mask, and memory is linear in
the length. Completions that are short, or shorter than their prompt, are queries alone, with a mask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

SMALL = 1 << 18  # up to this many padded query-key pairs, a block takes shorter sequences too: another call costs more
CLOSE = 0.8  # a sequence joins a block if it is at least this share of the block's longest sequence
LARGEST = 1 << 25  # most query-key pairs of one block: its additive mask takes 4 bytes per pair
# Sequences from this length on, and at least as long as their prompt, need no mask. Forward and backward of the tiny
# 4x128 model took 1.1 times as long without it at 128 tokens, 0.9 at 512 and 0.6 at 2,048 and 4,096.
LONG = 256


@dataclass(frozen=True)
class Block:
    """Sequences attended together: queries (rows, length), keys (rows, prefix + length)."""

    rows: int
    queries: Tensor  # packed row of each padded query, flat
    keys: Tensor  # packed row of each padded key, flat
    padding: Tensor  # flat positions of the queries whose output is not used
    mask: Tensor | None  # (rows or 1, 1, length, prefix + length), 0 or -inf; None: causal


@dataclass(frozen=True)
class AttentionPlan:
    """Where each packed token is in the blocks of one batch; all layers use the same plan."""

    blocks: tuple[Block, ...]
    query_index: Tensor  # of each packed row: its position in the concatenated queries of all blocks
    key_index: Tensor  # of each packed row: its position in the concatenated keys of all blocks
    shared_index: Tensor  # positions of prompt keys in the blocks of completions
    shared_row: Tensor  # the packed rows that those keys come from


def plan(
    sequences: Sequence[tuple[int, int, int, int]], total: int, dtype: torch.dtype, device: torch.device
) -> AttentionPlan:
    """The plan of a batch of `total` packed rows.

    `sequences` are (first packed row, length, first row of the prefix, prefix length).
    """
    blocks: list[Block] = []
    query_index, key_index = torch.empty(total, dtype=torch.long), torch.empty(total, dtype=torch.long)
    shared_index, shared_row = [], []
    query_base = key_base = 0
    for members in _grouped(sequences):
        start, length, prefix_start, prefix = torch.tensor(members).unsqueeze(2).unbind(1)  # each (rows, 1)
        rows, mask = len(members), None
        if _causal(members[0]):
            at = torch.arange(int((prefix + length).max()))
            own, shared = (at >= prefix) & (at < prefix + length), at < prefix
            keys = torch.where(own, start + at - prefix, torch.where(shared, prefix_start + at, start))
            queries, own_keys = keys, own
        else:
            at, before = torch.arange(int(length.max())), torch.arange(int(prefix.max()))
            own, visible = at < length, before < prefix
            queries = torch.where(own, start + at, start)
            keys = torch.cat((torch.where(visible, prefix_start + before, start), queries), 1)
            own_keys, shared = F.pad(own, (len(before), 0)), F.pad(visible, (0, len(at)))
            mask = _mask(visible, len(at), dtype)
        key_indices = key_base + torch.arange(keys.numel()).view(rows, -1)
        query_index[queries[own]] = query_base + torch.arange(queries.numel()).view(rows, -1)[own]
        key_index[keys[own_keys]] = key_indices[own_keys]
        shared_index.append(key_indices[shared])
        shared_row.append(keys[shared])
        query_base += queries.numel()
        key_base += keys.numel()
        padding = (~own).flatten().nonzero().squeeze(1).to(device)
        mask = None if mask is None else mask.to(device)
        blocks.append(Block(rows, queries.flatten().to(device), keys.flatten().to(device), padding, mask))
    indices = (query_index, key_index, torch.cat(shared_index), torch.cat(shared_row))
    return AttentionPlan(tuple(blocks), *(t.to(device) for t in indices))


def _causal(sequence: tuple[int, int, int, int]) -> bool:
    """Whether a sequence is computed together with its prefix; see above."""
    return sequence[1] >= max(sequence[3], LONG)


def _mask(visible: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """Additive mask of queries that see their prefix and their own past; one for all rows if all prefixes are whole."""
    rows, prefix = visible.shape
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    if bool(visible.all()):
        rows, visible = 1, visible[:1]
    allowed = torch.cat(
        (visible[:, None, None].expand(rows, 1, length, prefix), causal.expand(rows, 1, length, length)), 3
    )
    return torch.zeros(allowed.shape, dtype=dtype).masked_fill_(~allowed, -torch.inf)


def _grouped(sequences: Sequence[tuple[int, int, int, int]]) -> list[list[tuple[int, int, int, int]]]:
    """Blocks of similar length: of prompts (no prefix), of completions with their prefix, or of completions alone."""
    ordered = sorted((s for s in sequences if s[1]), key=lambda s: (_kind(s), -_width(s), s[0]))
    groups: list[list[tuple[int, int, int, int]]] = []
    longest = 0  # prefix of the last block
    for s in ordered:
        first = groups[-1][0] if groups else None
        if first is not None and _kind(first) == _kind(s):
            width, longest = _width(first), max(longest, s[3])
            pairs = (len(groups[-1]) + 1) * width * (width if _causal(first) else longest + width)
            if (_width(s) >= CLOSE * width and pairs <= LARGEST) or pairs <= SMALL:
                groups[-1].append(s)
                continue
        groups.append([s])
        longest = s[3]
    return groups


def _kind(s: tuple[int, int, int, int]) -> tuple[bool, bool]:
    return s[3] > 0, _causal(s)


def _width(s: tuple[int, int, int, int]) -> int:
    """Queries of a sequence in its block."""
    return s[1] + s[3] if _causal(s) else s[1]


def rotate(x: Tensor, cos: Tensor, sin: Tensor, back: bool = False) -> Tensor:
    """Rotary positions on (N, heads, size); `back` is the inverse, which is also the gradient."""
    half = x.shape[-1] // 2
    out = x * cos
    sign = -1.0 if back else 1.0
    out[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-sign)
    out[..., half:].addcmul_(x[..., :half], sin[..., half:], value=sign)
    return out


def attend(q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, plan: AttentionPlan) -> Tensor:
    """Packed queries (N, heads, size), keys and values (N, kv heads, size), without rotation -> (N, heads * size)."""
    if q.device.type == "cpu":
        out: Tensor = _Attention.apply(q, k, v, cos, sin, plan)  # type: ignore[no-untyped-call]
        return out
    return _attend_plainly(q, k, v, cos, sin, plan)


def _attend_plainly(q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, plan: AttentionPlan) -> Tensor:
    """The same in differentiable operations, for devices other than the CPU."""
    half = q.shape[-1] // 2

    def turned(x: Tensor) -> Tensor:
        return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin

    q, k = turned(q), turned(k)
    outs = []
    for block in plan.blocks:
        qb, kb, vb = _gathered(block, q, k, v)
        causal = block.mask is None
        out = F.scaled_dot_product_attention(qb, kb, vb, attn_mask=block.mask, is_causal=causal, enable_gqa=True)
        outs.append(out.transpose(1, 2).flatten(0, 1).flatten(1))
    return torch.cat(outs).index_select(0, plan.query_index)


def _gathered(block: Block, q: Tensor, k: Tensor, v: Tensor) -> Iterator[Tensor]:
    """Queries, keys and values of a block, (rows, heads, tokens, head size)."""
    for x, rows in ((q, block.queries), (k, block.keys), (v, block.keys)):
        yield x.index_select(0, rows).unflatten(0, (block.rows, -1)).transpose(1, 2)


class _Attention(torch.autograd.Function):
    """The CPU path. A token's gradient is gathered from its one position in a block; only the gradients of shared
    prompt keys and values are added up. Autograd's own gather would zero and add a full tensor per block."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, plan: AttentionPlan) -> Tensor:
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        saved: list[Tensor] = []
        outs = []
        for block in plan.blocks:
            qb, kb, vb = _gathered(block, q, k, v)
            out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                qb, kb, vb, is_causal=block.mask is None, attn_mask=block.mask
            )
            saved += (qb, kb, vb, out, lse)
            outs.append(out.transpose(1, 2).reshape(-1, q.shape[1] * q.shape[2]))
        ctx.save_for_backward(cos, sin, *saved)
        ctx.plan = plan
        return (torch.cat(outs) if len(outs) > 1 else outs[0]).index_select(0, plan.query_index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        cos, sin, *saved = ctx.saved_tensors
        plan: AttentionPlan = ctx.plan
        parts: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
        for i, block in enumerate(plan.blocks):
            qb, kb, vb, out, lse = saved[5 * i : 5 * i + 5]
            gb = grad.index_select(0, block.queries).index_fill_(0, block.padding, 0.0)
            gb = gb.view(block.rows, -1, qb.shape[1], qb.shape[3]).transpose(1, 2)
            grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                gb, qb, kb, vb, out, lse, 0.0, block.mask is None, attn_mask=block.mask
            )
            for part, g in zip(parts, grads, strict=True):
                part.append(g.transpose(1, 2).flatten(0, 1))
        dq, dk, dv = (torch.cat(p) if len(p) > 1 else p[0] for p in parts)
        dq = rotate(dq.index_select(0, plan.query_index), cos, sin, back=True)
        sums = []
        for d in (dk, dv):
            own = d.index_select(0, plan.key_index)
            sums.append(own.index_add_(0, plan.shared_row, d.index_select(0, plan.shared_index)))
        return dq, rotate(sums[0], cos, sin, back=True), sums[1], None, None, None
