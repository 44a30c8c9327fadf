"""Decoding: one step of `rollout.generate` computes the next token of all running answers.

For models of the Llama family. Activations are laid out (features, lanes): on a CPU a product of a large weight
with a few columns is about 1.3 times as fast as the transposed one. Projections are fused (queries, keys and values in
one product, gate and up in another), and norm weights are folded into the weight that follows. All lanes share these
products; attention is computed per cohort of lanes of similar length.

Keys and values take memory that grows with the sampled tokens, not with the limit. Answers of similar length form a
cohort and are attended together in dense products. Inside a cohort answers are aligned at their ends: the newest token
of every row is in the same column, and row r begins at column `shift[r]`. So a step writes one column, and only the
first columns need a mask. The answers of a prompt read one copy of its keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fspo.model.forward import Family, rms_norm, trunk

LANES = 16  # the linear layers compute a multiple of this many columns: fewer or an odd number are slower
BLOCK = 128  # columns by which a cohort grows at least; a long one grows by a quarter, so that little is copied
PADDED = 1.2  # cohorts are joined if that makes them at most this many times as large as their tokens,
SMALL = 1 << 20  # or if at most this many bytes per layer are padding: reading those takes as long as another cohort
# Bytes of keys and values of one layer and cohort from which on attention uses all threads: reading them takes one
# thread 0.3 ms. Below, threads wait for each other longer than they save.
WIDE = 1 << 22


# --- the step -------------------------------------------------------------------------------------------------------


class _Weights:
    """Fused copies of one layer's weights; each key-value head is next to the query heads that read it."""

    def __init__(self, parts: Family, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        d, kv, rep = parts.head_size, parts.kv_heads, parts.heads // parts.kv_heads
        scale = d**-0.5
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        (wq, wk, wv), (bq, bk, bv) = ([getattr(p, name) for p in projections] for name in ("weight", "bias"))
        self.qk_norm: Tensor | None = None
        if hasattr(attention, "q_norm"):
            self.qk_norm = torch.stack([attention.q_norm.weight * scale] * rep + [attention.k_norm.weight])
        else:  # the softmax's scale is folded into the queries
            wq, bq = wq * scale, None if bq is None else bq * scale
        width = wq.shape[1]
        heads = (wq.view(kv, rep, d, width), wk.view(kv, 1, d, width), wv.view(kv, 1, d, width))
        self.qkv = torch.cat(heads, 1).view(-1, width) * layer.input_layernorm.weight
        self.qkv_bias = None
        if bq is not None:
            self.qkv_bias = torch.cat((bq.view(kv, rep, d), bk.view(kv, 1, d), bv.view(kv, 1, d)), 1).view(-1, 1)
        self.gate_up = torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)) * layer.post_attention_layernorm.weight
        self.o, self.down = attention.o_proj.weight, mlp.down_proj.weight


class FamilyDecoder:
    """Decodes lanes of running answers. Logits are (vocabulary, lanes), and may be overwritten by the caller.

    Attention over long answers may use `threads` threads. `token_bytes` is the memory of one cached token.
    """

    def __init__(self, parts: Family, positions: int, threads: int) -> None:
        """`positions` is the longest prompt with its answer."""
        self.parts, self.device, self.threads = parts, parts.embedding.device, threads
        self.weights = [_Weights(parts, layer) for layer in parts.layers]
        cos, sin = parts.rotary_tables(torch.arange(positions, device=self.device))
        self.cos, self.sin = cos, sin[:, : parts.head_size // 2].contiguous()
        self.cohorts: list[Cohort] = []
        self.position = torch.zeros(0, dtype=torch.long, device=self.device)  # of each lane's next token
        self.layer_bytes = 2 * parts.kv_heads * parts.head_size * parts.embedding.element_size()
        self.token_bytes = len(parts.layers) * self.layer_bytes

    def admit(self, prompts: list[list[int]], group: list[int]) -> Tensor:
        """Compute each prompt once, and append one lane per entry of `group`, its prompt; the logits of their first
        tokens."""
        parts, lengths = self.parts, [len(p) for p in prompts]
        ends = torch.tensor(lengths).cumsum(0)
        sequences = [(end - n, n, 0, 0) for end, n in zip(ends.tolist(), lengths, strict=True)]
        cache: list[tuple[Tensor, Tensor]] = []
        ids, positions = [i for p in prompts for i in p], [j for n in lengths for j in range(n)]
        x = trunk(parts, ids, positions, sequences, self.device, cache)
        rows = torch.tensor(group, device=self.device)
        self.cohorts.append(prompt_cohort(lengths, cache, rows))
        self.position = torch.cat((self.position, torch.tensor(lengths, device=self.device)[rows]))
        self._join_neighbours()
        h = rms_norm(x[(ends - 1).to(self.device)], parts.norm, parts.eps)
        return (parts.head @ h.t()).index_select(1, rows)

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token per lane; the logits of the next one."""
        parts, lanes = self.parts, len(tokens)
        d, kv, rep = parts.head_size, parts.kv_heads, parts.heads // parts.kv_heads
        half, filled = d // 2, lanes + -lanes % LANES
        for cohort in self.cohorts:
            cohort.extend()
        cos = self.cos.index_select(0, self.position)[:, None, None]
        sin = self.sin.index_select(0, self.position)[:, None, None]
        # Lanes that only fill up hold token 0; nothing of them is used.
        tokens = F.pad(tokens, (0, filled - lanes)) if filled > lanes else tokens
        x = parts.embedding.index_select(0, tokens).t().contiguous()
        mixed = x.new_zeros(filled, parts.heads * d)
        for i, w in enumerate(self.weights):
            y = torch.mm(w.qkv, self._unit(x))
            if w.qkv_bias is not None:
                y += w.qkv_bias
            y = y.view(kv, rep + 2, d, filled).permute(3, 0, 1, 2)[:lanes].contiguous()
            qk = y[:, :, : rep + 1]
            if w.qk_norm is not None:
                qk = F.rms_norm(qk, (d,), eps=parts.eps).mul_(w.qk_norm)
            turned = qk * cos
            turned[..., :half].addcmul_(qk[..., half:], sin, value=-1.0)
            turned[..., half:].addcmul_(qk[..., :half], sin)
            self._attend(i, turned, y, mixed)
            x.addmm_(w.o, mixed.t())
            gate, up = torch.mm(w.gate_up, self._unit(x)).chunk(2)
            x.addmm_(w.down, F.silu(gate, inplace=True).mul_(up))
        self.position.add_(1).clamp_max_(len(self.cos) - 1)  # ended answers may run on for a few steps
        for cohort in self.cohorts:
            cohort.t += 1
        return torch.mm(parts.head, self._unit(x).mul_(parts.norm.unsqueeze(1)))[:, :lanes]

    def _attend(self, layer: int, turned: Tensor, y: Tensor, out: Tensor) -> None:
        """Attention of every cohort, written to its lanes of `out`."""
        rep, few = turned.shape[2] - 1, torch.get_num_threads()
        a = 0
        for cohort in self.cohorts:
            b = a + cohort.rows
            wide = self.threads > few and cohort.rows * (cohort.t + 1) * self.layer_bytes >= WIDE
            if wide:
                torch.set_num_threads(self.threads)
            out[a:b] = cohort.attend(layer, turned[a:b, :, :rep], turned[a:b, :, rep], y[a:b, :, rep + 1])
            if wide:
                torch.set_num_threads(few)
            a = b

    def keep(self, lanes: Tensor) -> None:
        """Continue with these lanes only, given in ascending order; prompts without a lane are dropped too."""
        self.position = self.position[lanes]
        left: list[Cohort] = []
        a = 0
        for cohort in self.cohorts:
            rows = lanes[(lanes >= a) & (lanes < a + cohort.rows)] - a
            a += cohort.rows
            if len(rows):
                left.append(cohort if len(rows) == cohort.rows else join([(cohort, rows)]))
        self.cohorts = left
        self._join_neighbours()

    def _join_neighbours(self) -> None:
        """Join cohorts that are attended faster together, because little padding is added."""
        i = 0
        while i + 1 < len(self.cohorts):
            a, b = self.cohorts[i : i + 2]
            t, longest = max(a.t, b.t), max(a.longest, b.longest)
            together = (a.rows + b.rows) * t + (len(a.prompt_lengths) + len(b.prompt_lengths)) * longest
            apart = sum(c.rows * c.t + len(c.prompt_lengths) * c.longest for c in (a, b))
            if together <= PADDED * apart or (together - apart) * self.layer_bytes <= SMALL:
                self.cohorts[i : i + 2] = [join([(a, None), (b, None)])]
            else:
                i += 1

    def _unit(self, x: Tensor) -> Tensor:
        """Columns divided by their root mean square; the norm's weight is already in the next product."""
        square: Tensor = torch.linalg.vecdot(x, x, dim=0)
        return x * square.div_(x.shape[0]).add_(self.parts.eps).rsqrt_()


# --- its cache of keys and values -----------------------------------------------------------------------------------


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

    def extend(self) -> None:
        """Grow the capacity for another token if needed."""
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
        p = torch.cat((before.view(-1, rep, longest).index_select(0, self.slot_index), own), 2).softmax(2)
        shared = p[..., :longest].index_select(0, self.slots).view(prompts * kv, -1, longest)
        shared = torch.bmm(shared, self.prompt_values[layer].flatten(0, 1)).view(-1, rep, d)
        out = shared.index_select(0, self.slot_index)
        return out.baddbmm_(p[..., longest:], values.flatten(0, 1)[:, :n]).view(rows, kv * rep * d)

    def _arrange(self) -> None:
        """`slots` lists the rows of each prompt and key-value head, padded to the largest group; `slot_index` has the
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
        self.slot_index = torch.empty(len(order) * kv, dtype=torch.long, device=order.device)
        self.slot_index[rows.flatten()] = spots.flatten()

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
            if (surplus := part.t - t) > 0:  # the first columns of a cohort whose longest rows have left
                part.keys, part.values = ([x[:, :, surplus:] for x in layers] for layers in (part.keys, part.values))
                part.t = t
        whole._take(parts, t)
    return whole


def prompt_cohort(lengths: list[int], cache: Any, group: Tensor) -> Cohort:
    """A cohort of answers without a token, from each layer's packed keys and values (tokens, kv heads, head size)."""
    longest = max(lengths)
    where = torch.tensor([i * longest + j for i, n in enumerate(lengths) for j in range(n)], device=group.device)
    padded: tuple[list[Tensor], list[Tensor]] = ([], [])
    for layer in cache:
        for out, packed in zip(padded, layer, strict=True):
            block = packed.new_zeros(len(lengths) * longest, *packed.shape[1:])
            block[where] = packed
            out.append(block.view(len(lengths), longest, *packed.shape[1:]).transpose(1, 2).contiguous())
    return Cohort(lengths, padded[0], padded[1], group)
