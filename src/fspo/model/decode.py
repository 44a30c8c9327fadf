"""Decoding: one step of `rollout.generate` computes the next token of all running answers.

The Llama family has its own decoder. Activations are laid out (features, lanes): on a CPU a product of a large weight
with a few columns is about 1.3 times as fast as the transposed one. Projections are fused (queries, keys and values in
one product, gate and up in another), and norm weights are folded into the weight that follows. All lanes share these
products; attention is computed per cohort of lanes of similar length (see `cache`).
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from fspo.model.cache import Cohort, join, prompt_cohort, worth_joining
from fspo.model.family import Family, dense, rms_norm
from fspo.model.forward import trunk

LANES = 16
"""The linear layers compute a multiple of this many lanes: a matrix product with fewer or an odd number of columns is
slower."""

WIDE = 1 << 22
"""Bytes of keys and values of one layer and cohort from which on attention uses all threads: reading them takes one
thread 0.3 ms. Below, threads wait for each other longer than they save."""


class Decoder(Protocol):
    """Decodes lanes of running answers. Logits are (vocabulary, lanes), and may be overwritten by the caller."""

    token_bytes: int  # memory of one cached token, known from the first `admit` on

    def admit(self, prompts: list[list[int]], group: list[int]) -> Tensor:
        """Process prompts and append one lane per entry of `group`, its prompt; the logits of their first tokens."""

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token per lane; the logits of the next one."""

    def keep(self, lanes: Tensor) -> None:
        """Continue with these lanes only, given in ascending order."""

    def held(self) -> int:
        """Cached tokens for which memory is held after the next step, padding included."""


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
    """Decoding for the Llama family. Attention over long answers may use `threads` threads."""

    def __init__(self, parts: Family, positions: int, threads: int) -> None:
        """`positions` is the longest prompt with its answer."""
        self.parts, self.device, self.threads = parts, parts.embedding.device, threads
        self.weights = [_Weights(parts, i) for i in range(len(parts.layers))]
        cos, sin = parts.rotary_tables(torch.arange(positions, device=self.device))
        self.cos, self.sin = cos, sin[:, : parts.head_size // 2].contiguous()
        self.cohorts: list[Cohort] = []
        self.position = torch.zeros(0, dtype=torch.long, device=self.device)  # of each lane's next token
        self.layer_bytes = 2 * parts.kv_heads * parts.head_size * parts.embedding.element_size()
        self.token_bytes = len(parts.layers) * self.layer_bytes

    def admit(self, prompts: list[list[int]], group: list[int]) -> Tensor:
        """Compute each prompt once; the logits of the first token of each new lane."""
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
            if w.o_bias is not None:
                x += w.o_bias
            y = torch.mm(w.gate_up, self._unit(x))
            if w.gate_up_bias is not None:
                y += w.gate_up_bias
            gate, up = y.chunk(2)
            x.addmm_(w.down, F.silu(gate, inplace=True).mul_(up))
            if w.down_bias is not None:
                x += w.down_bias
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
        """Continue with these lanes only; prompts without a lane are dropped too."""
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

    def held(self) -> int:
        return sum(cohort.size(cohort.next_capacity()) for cohort in self.cohorts)

    def _join_neighbours(self) -> None:
        i = 0
        while i + 1 < len(self.cohorts):
            a, b = self.cohorts[i : i + 2]
            if worth_joining(a, b, self.layer_bytes):
                self.cohorts[i : i + 2] = [join([(a, None), (b, None)])]
            else:
                i += 1

    def _unit(self, x: Tensor) -> Tensor:
        """Columns divided by their root mean square; the norm's weight is already in the next product."""
        wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
        square: Tensor = torch.linalg.vecdot(wide, wide, dim=0)
        return (wide * square.div_(x.shape[0]).add_(self.parts.eps).rsqrt_()).to(x.dtype)
