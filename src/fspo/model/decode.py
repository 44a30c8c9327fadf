"""Decoding: one step of `rollout.generate` computes the next token of all running answers.

The Llama family has its own decoder. Activations are laid out (features, rows): on a CPU a product of a large weight
with a few columns is about 1.3 times as fast as the transposed one. Projections are fused (queries, keys and values in
one product, gate and up in another), norm weights are folded into the weight that follows, and the rows of a group
read one copy of their prompt's keys and values in one product.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from fspo.model.family import Family, dense, rms_norm
from fspo.model.forward import trunk
from fspo.model.loading import Policy


class Decoder(Protocol):
    """Decodes rows of running answers. Logits are (vocabulary, rows), and may be overwritten by the caller."""

    def start(self) -> Tensor:
        """Process the prompts; the logits of the first token of each row."""

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token per row; the logits of the next one."""

    def keep(self, rows: Tensor) -> None:
        """Continue with these rows only."""


class _Weights:
    """Fused copies of one layer's weights; each key-value head is next to the query heads that read it."""

    def __init__(self, parts: Family, index: int) -> None:
        layer = parts.layers[index]
        d, kv, rep = parts.head_size, parts.kv_heads, parts.heads // parts.kv_heads
        scale = d**-0.5
        (wq, bq), (wk, bk), (wv, bv) = dense(layer.q), dense(layer.k), dense(layer.v)
        self.qk_norm: Tensor | None = None
        if layer.q_norm is not None and layer.k_norm is not None:
            self.qk_norm = torch.stack([layer.q_norm * scale] * rep + [layer.k_norm])
        else:  # the softmax's scale is folded into the queries
            wq, bq = wq * scale, None if bq is None else bq * scale
        width = wq.shape[1]
        heads = (wq.view(kv, rep, d, width), wk.view(kv, 1, d, width), wv.view(kv, 1, d, width))
        self.qkv = torch.cat(heads, 1).view(-1, width) * layer.norm
        self.qkv_bias = None
        if bq is not None and bk is not None and bv is not None:
            self.qkv_bias = torch.cat((bq.view(kv, rep, d), bk.view(kv, 1, d), bv.view(kv, 1, d)), 1).view(-1, 1)
        self.o, self.o_bias = _column(dense(layer.o))
        (gate, gate_bias), (up, up_bias) = dense(layer.gate), dense(layer.up)
        self.gate_up = torch.cat((gate, up)) * layer.mlp_norm
        self.gate_up_bias = (
            torch.cat((gate_bias, up_bias)).unsqueeze(1) if gate_bias is not None and up_bias is not None else None
        )
        self.down, self.down_bias = _column(dense(layer.down))


def _column(linear: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor | None]:
    weight, bias = linear
    return weight, None if bias is None else bias.unsqueeze(1)


class FamilyDecoder:
    """Decoding for the Llama family. `group[i]` is the prompt of row i; the rows of a prompt must be adjacent."""

    def __init__(self, parts: Family, prompts: list[list[int]], group: Tensor, limit: int) -> None:
        self.parts, self.device = parts, parts.embedding.device
        self.weights = [_Weights(parts, i) for i in range(len(parts.layers))]
        self.prompts, self.group, self.t = prompts, group.to(self.device), 0
        longest = max(map(len, prompts))
        lengths = torch.tensor([len(p) for p in prompts], device=self.device)
        self.position = lengths[self.group]
        cos, sin = parts.rotary_tables(torch.arange(longest + limit, device=self.device))
        self.cos, self.sin = cos, sin[:, : parts.head_size // 2].contiguous()
        shape = (len(parts.layers), parts.kv_heads, len(group), limit, parts.head_size)
        self.keys, self.values = (torch.empty(shape, dtype=parts.embedding.dtype, device=self.device) for _ in "kv")
        padding = torch.arange(longest, device=self.device) >= lengths.unsqueeze(1)
        self.prompt_mask: Tensor | None = None
        if bool(padding.any()):
            zero = torch.zeros(padding.shape, dtype=cos.dtype, device=self.device)
            self.prompt_mask = zero.masked_fill(padding, -torch.inf).unsqueeze(1)
        self._arrange()

    def start(self) -> Tensor:
        """Compute each prompt once and store its keys and values; the logits of the first token of each row."""
        parts, longest = self.parts, max(map(len, self.prompts))
        ids: list[int] = []
        positions: list[int] = []
        sequences: list[tuple[int, int, int, int]] = []
        places: list[int] = []
        last: list[int] = []
        for i, prompt in enumerate(self.prompts):
            sequences.append((len(ids), len(prompt), 0, 0))
            places += range(i * longest, i * longest + len(prompt))
            ids += prompt
            positions += range(len(prompt))
            last.append(len(ids) - 1)
        cache: list[tuple[Tensor, Tensor]] = []
        x = trunk(parts, ids, positions, sequences, self.device, cache)
        where = torch.tensor(places, device=self.device)
        self.prompt_keys: list[Tensor] = []
        self.prompt_values: list[Tensor] = []
        for k, v in cache:
            for out, packed in ((self.prompt_keys, k), (self.prompt_values, v)):
                padded = packed.new_zeros(len(self.prompts) * longest, *packed.shape[1:])
                padded[where] = packed
                # (kv heads * prompts, longest, head size)
                padded = padded.view(len(self.prompts), longest, parts.kv_heads, -1).permute(2, 0, 1, 3)
                out.append(padded.flatten(0, 1))
        h = rms_norm(x[torch.tensor(last, device=self.device)], parts.norm, parts.eps)
        return (parts.head @ h.t()).index_select(1, self.group)

    def step(self, tokens: Tensor) -> Tensor:
        parts, rows, t = self.parts, len(tokens), self.t
        d, kv, rep = parts.head_size, parts.kv_heads, parts.heads // parts.kv_heads
        half = d // 2
        cos = self.cos.index_select(0, self.position).unsqueeze(1)
        sin = self.sin.index_select(0, self.position).unsqueeze(1)
        x = parts.embedding.index_select(0, tokens).t().contiguous()
        prompts = len(self.prompts)
        for i, w in enumerate(self.weights):
            y = torch.mm(w.qkv, self._unit(x))
            if w.qkv_bias is not None:
                y += w.qkv_bias
            y = y.view(kv, rep + 2, d, rows).permute(0, 3, 1, 2).contiguous()
            qk = y[:, :, : rep + 1]
            if w.qk_norm is not None:
                qk = F.rms_norm(qk, (d,), eps=parts.eps).mul_(w.qk_norm)
            turned = qk * cos
            turned[..., :half].addcmul_(qk[..., half:], sin, value=-1.0)
            turned[..., half:].addcmul_(qk[..., :half], sin)
            keys, values = self.keys[i], self.values[i]
            keys[:, :, t] = turned[:, :, rep]
            values[:, :, t] = y[:, :, rep + 1]
            q = turned[:, :, :rep]
            # Scores on the prompt: one product for all rows of a prompt. Scores on the answer so far: row by row.
            together = q.index_select(1, self.slots).view(kv * prompts, -1, d)
            before = torch.bmm(together, self.prompt_keys[i].transpose(1, 2))
            if self.prompt_mask is not None:
                before.view(kv, prompts, -1, before.shape[2]).add_(self.prompt_mask)
            before = before.view(kv, len(self.slots), rep, -1).index_select(1, self.place)
            own = torch.bmm(
                q.reshape(kv * rows, rep, d), keys[:, :, : t + 1].reshape(kv * rows, t + 1, d).transpose(1, 2)
            )
            p = torch.cat((before, own.view(kv, rows, rep, t + 1)), 3).softmax(3)
            longest = before.shape[3]
            shared = p[..., :longest].index_select(1, self.slots).view(kv * prompts, -1, longest)
            shared = torch.bmm(shared, self.prompt_values[i]).view(kv, len(self.slots), rep, d)
            out = torch.baddbmm(
                shared.index_select(1, self.place).view(kv * rows, rep, d),
                p[..., longest:].reshape(kv * rows, rep, t + 1),
                values[:, :, : t + 1].reshape(kv * rows, t + 1, d),
            )
            out = out.view(kv, rows, rep * d).transpose(1, 2).reshape(-1, rows)
            x.addmm_(w.o, out)
            if w.o_bias is not None:
                x += w.o_bias
            y = torch.mm(w.gate_up, self._unit(x))
            if w.gate_up_bias is not None:
                y += w.gate_up_bias
            gate, up = y.chunk(2)
            x.addmm_(w.down, F.silu(gate, inplace=True).mul_(up))
            if w.down_bias is not None:
                x += w.down_bias
        self.position += 1
        self.t += 1
        return torch.mm(parts.head, self._unit(x).mul_(parts.norm.unsqueeze(1)))

    def keep(self, rows: Tensor) -> None:
        """Continue with these rows only; prompts without a row are dropped too."""
        t = self.t
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_empty(*old.shape[:2], len(rows), *old.shape[3:])
            new[:, :, :, :t] = old[:, :, :, :t].index_select(2, rows)
            setattr(self, name, new)
        self.position = self.position[rows]
        used, self.group = self.group[rows].unique(return_inverse=True)
        if len(used) < len(self.prompts):
            for cache in (self.prompt_keys, self.prompt_values):
                for i, c in enumerate(cache):
                    per_head = c.view(self.parts.kv_heads, len(self.prompts), *c.shape[1:])
                    cache[i] = per_head.index_select(1, used).flatten(0, 1)
            self.prompts = [self.prompts[i] for i in used.tolist()]
            if self.prompt_mask is not None:
                self.prompt_mask = self.prompt_mask[used]
        self._arrange()

    def _arrange(self) -> None:
        """`slots` lists the rows of each prompt, padded to the largest group; `place` has the position of each row."""
        counts = torch.bincount(self.group, minlength=len(self.prompts))
        width = int(counts.max())
        order = self.group.argsort(stable=True)
        first = counts.cumsum(0) - counts
        within = torch.arange(len(order), device=order.device) - first[self.group[order]]
        spots = self.group[order] * width + within
        self.slots = torch.zeros(len(self.prompts) * width, dtype=torch.long, device=order.device)
        self.slots[spots] = order
        self.place = torch.empty_like(order)
        self.place[order] = spots

    def _unit(self, x: Tensor) -> Tensor:
        """Columns divided by their root mean square; the norm's weight is already in the next product."""
        wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
        square: Tensor = torch.linalg.vecdot(wide, wide, dim=0)
        return (wide * square.div_(x.shape[0]).add_(self.parts.eps).rsqrt_()).to(x.dtype)


class ModuleDecoder:
    """Any other architecture: the module's own forward with transformers' cache, prompts padded left."""

    def __init__(self, policy: Policy, prompts: list[list[int]], group: Tensor, limit: int) -> None:
        self.model, self.device, self.group = policy.model, policy.device, group.to(policy.device)
        longest = max(map(len, prompts))
        pad = policy.pad_id
        self.ids = torch.tensor([[pad] * (longest - len(p)) + p for p in prompts], device=self.device)
        self.mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=self.device)
        self.cache: Any = None

    def start(self) -> Tensor:
        from transformers import DynamicCache

        self.cache = DynamicCache(config=self.model.config)
        logits = self._forward(self.ids, (self.mask.cumsum(1) - 1).clamp_min(0))
        self.cache.batch_select_indices(self.group)
        self.mask = self.mask[self.group]
        return logits.index_select(0, self.group).t().contiguous()

    def step(self, tokens: Tensor) -> Tensor:
        self.mask = F.pad(self.mask, (0, 1), value=1)
        return self._forward(tokens.unsqueeze(1), self.mask.sum(1, keepdim=True) - 1).t().contiguous()

    def keep(self, rows: Tensor) -> None:
        self.cache.batch_select_indices(rows)
        self.mask = self.mask[rows]

    def _forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        out = self.model(
            input_ids=ids,
            attention_mask=self.mask,
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = out.logits[:, -1]
        return logits
