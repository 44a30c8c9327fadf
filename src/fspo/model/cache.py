"""Keys and values of running answers, in memory that grows with the sampled tokens, not with the limit.

Answers of similar length form a cohort and are attended together in dense products. Inside a cohort answers are aligned
at their ends: the newest token of every row is in the same column, and row r begins at column `shift[r]`. So a step
writes one column, and only the first columns need a mask. The answers of a prompt read one copy of its keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 128
"""Columns by which a cohort grows at least; a long one grows by a quarter, so that copying stays a small share."""

PADDED = 1.2
"""Cohorts are joined if that makes them at most this many times as large as their tokens."""

SMALL = 1 << 20
"""Or if at most this many bytes per layer are padding: attending another cohort takes as long as reading those."""


class Cohort:
    """Answers that are attended together. Per layer: keys and values (rows, kv heads, capacity, head size)."""

    def __init__(
        self,
        prompt_lengths: list[int],
        prompt_keys: list[Tensor],
        prompt_values: list[Tensor],
        group: Tensor,
        shift: Tensor | None = None,
    ) -> None:
        """`group` (rows,) is the prompt of each row. The prompts' keys are (prompts, kv heads, longest, head size)."""
        self.prompt_lengths, self.prompt_keys, self.prompt_values = prompt_lengths, prompt_keys, prompt_values
        self.group, self.t, self.capacity = group, 0, 0
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        first = prompt_keys[0]
        self.kv_heads, self.longest = first.shape[1], first.shape[2]
        device, zero = group.device, first.new_zeros(())
        lengths = torch.tensor(prompt_lengths, device=device)
        self.prompt_mask: Tensor | None = None
        if min(prompt_lengths) < self.longest:
            padding = torch.arange(self.longest, device=device) >= lengths.unsqueeze(1)
            self.prompt_mask = torch.where(padding, -torch.inf, zero)[:, None, None]
        self.shift = torch.zeros_like(group) if shift is None else shift
        widest = 0 if shift is None else int(shift.max())
        self.shift_mask: Tensor | None = None
        if widest:
            before = torch.arange(widest, device=device) < self.shift.unsqueeze(1)
            self.shift_mask = torch.where(before, -torch.inf, zero)[:, None, None]
        self._arrange()

    @property
    def rows(self) -> int:
        return len(self.group)

    def size(self, capacity: int) -> int:
        """Positions held if every row has this capacity."""
        return self.rows * capacity + len(self.prompt_lengths) * self.longest

    def next_capacity(self) -> int:
        """Columns after the next step."""
        return self.capacity if self.t < self.capacity else self.t + max(BLOCK, self.t // 4)

    def extend(self) -> None:
        """Make room for another token."""
        if self.t == self.capacity:
            self._take([(self, None)], self.t)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store one token per row, and attend to the prompt and the answer: queries (rows, kv heads, queries per head,
        head size) -> (rows, heads * head size). `t` is advanced by the caller, after all layers."""
        rows, kv, rep, d = q.shape
        n, longest, prompts = self.t + 1, self.longest, len(self.prompt_lengths)
        keys, values = self.keys[layer], self.values[layer]
        keys[:, :, self.t] = k
        values[:, :, self.t] = v
        q = q.reshape(rows * kv, rep, d)
        # Scores on the prompt: one product for all rows of a prompt. Scores on the answer so far: row by row.
        together = q.index_select(0, self.slots).view(prompts * kv, -1, d)
        before = torch.bmm(together, self.prompt_keys[layer].flatten(0, 1).transpose(1, 2))
        if self.prompt_mask is not None:
            before.view(prompts, kv, -1, longest).add_(self.prompt_mask)
        own = torch.bmm(q, keys.flatten(0, 1)[:, :n].transpose(1, 2))
        if self.shift_mask is not None:
            own.view(rows, kv, rep, n)[..., : self.shift_mask.shape[3]].add_(self.shift_mask)
        p = torch.cat((before.view(-1, rep, longest).index_select(0, self.place), own), 2).softmax(2)
        shared = p[..., :longest].index_select(0, self.slots).view(prompts * kv, -1, longest)
        shared = torch.bmm(shared, self.prompt_values[layer].flatten(0, 1)).view(-1, rep, d)
        out = shared.index_select(0, self.place)
        return out.baddbmm_(p[..., longest:], values.flatten(0, 1)[:, :n]).view(rows, kv * rep * d)

    def _arrange(self) -> None:
        """`slots` lists the rows of each prompt and key-value head, padded to the largest group; `place` has the
        position of each row and head in it."""
        prompts, kv, group = len(self.prompt_lengths), self.kv_heads, self.group
        counts = torch.bincount(group, minlength=prompts)
        width = int(counts.max())
        order = group.argsort(stable=True)
        first = counts.cumsum(0) - counts
        within = torch.arange(len(order), device=order.device) - first[group[order]]
        heads = torch.arange(kv, device=order.device)
        spots = ((group[order] * kv).unsqueeze(1) + heads) * width + within.unsqueeze(1)  # (rows, kv)
        rows = (order * kv).unsqueeze(1) + heads
        self.slots = torch.zeros(prompts * kv * width, dtype=torch.long, device=order.device)
        self.slots[spots.flatten()] = rows.flatten()
        self.place = torch.empty(len(order) * kv, dtype=torch.long, device=order.device)
        self.place[rows.flatten()] = spots.flatten()

    def _take(self, parts: Sequence[tuple[Cohort, Tensor | None]], t: int) -> None:
        """Copy the answers of `parts` to end at column `t`; the parts give up their memory layer by layer."""
        capacity = t + max(BLOCK, t // 4)
        rows, like = self.rows, self.prompt_keys[0]
        for name in ("keys", "values"):
            old = [getattr(part, name) for part, _ in parts]
            taken: list[Tensor] = []
            for i in range(len(self.prompt_keys)):
                new = like.new_empty(rows, self.kv_heads, capacity, like.shape[3])
                a = 0
                for (part, chosen), layers in zip(parts, old, strict=True):
                    b = a + (part.rows if chosen is None else len(chosen))
                    new[a:b, :, : t - part.t] = 0.0  # read with weight 0, so it must be finite
                    if part.t:
                        kept = layers[i][:, :, : part.t]
                        new[a:b, :, t - part.t : t] = kept if chosen is None else kept.index_select(0, chosen)
                        layers[i] = like.new_empty(0)
                    a = b
                taken.append(new)
            setattr(self, name, taken)
        self.t, self.capacity = t, capacity


def join(parts: Sequence[tuple[Cohort, Tensor | None]]) -> Cohort:
    """One cohort of these rows (None: all) of several, which cannot be used again; unused prompts are dropped."""
    t = max(part.t for part, _ in parts)
    longest = max(part.longest for part, _ in parts)
    lengths: list[int] = []
    groups, shifts = [], []
    keys: list[list[Tensor]] = []
    values: list[list[Tensor]] = []
    for part, rows in parts:
        group, shift = (x if rows is None else x[rows] for x in (part.group, part.shift))
        used, group = group.unique(return_inverse=True)
        groups.append(group + len(lengths))
        shifts.append(shift + (t - part.t))
        lengths += [part.prompt_lengths[i] for i in used.tolist()]
        every = len(used) == len(part.prompt_lengths)
        for out, layers in ((keys, part.prompt_keys), (values, part.prompt_values)):
            picked = layers if every else [x.index_select(0, used) for x in layers]
            out.append([F.pad(x, (0, 0, 0, longest - part.longest)) for x in picked])
    shift = torch.cat(shifts)
    # Columns in which no remaining row has a token are dropped.
    t -= int(shift.min())
    shift -= shift.min()
    merged = [
        [torch.cat(layer) if len(layer) > 1 else layer[0] for layer in zip(*x, strict=True)] for x in (keys, values)
    ]
    whole = Cohort(lengths, merged[0], merged[1], torch.cat(groups), shift)
    if t:
        for part, _ in parts:
            _drop_columns(part, part.t - t)
        whole._take(parts, t)
    return whole


def _drop_columns(part: Cohort, surplus: int) -> None:
    """Forget the first columns of a cohort whose longest rows have left."""
    if surplus > 0:
        part.keys, part.values = ([x[:, :, surplus:] for x in layers] for layers in (part.keys, part.values))
        part.t -= surplus


def worth_joining(a: Cohort, b: Cohort, bytes_per_layer: int) -> bool:
    """Whether two neighbours are attended faster together: little padding is added."""
    t, longest = max(a.t, b.t), max(a.longest, b.longest)
    together = (a.rows + b.rows) * t + (len(a.prompt_lengths) + len(b.prompt_lengths)) * longest
    apart = sum(c.rows * c.t + len(c.prompt_lengths) * c.longest for c in (a, b))
    return together <= PADDED * apart or (together - apart) * bytes_per_layer <= SMALL


def prompt_cohort(lengths: list[int], cache: Any, group: Tensor) -> Cohort:
    """A cohort of answers without a token, from each layer's packed keys and values (tokens, kv heads, head size)."""
    longest = max(lengths)
    where = torch.tensor([i * longest + j for i, n in enumerate(lengths) for j in range(n)], device=group.device)
    padded: tuple[list[Tensor], list[Tensor]] = ([], [])
    for layer in cache:
        for out, packed in zip(padded, layer, strict=True):
            room = packed.new_zeros(len(lengths) * longest, *packed.shape[1:])
            room[where] = packed
            out.append(room.view(len(lengths), longest, *packed.shape[1:]).transpose(1, 2).contiguous())
    return Cohort(lengths, padded[0], padded[1], group)
