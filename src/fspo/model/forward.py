"""The forward pass for training: log-probs of answers, with one copy of each group's prompt and no padding.

Llama (and SmolLM2), Qwen2 and Qwen3 share one structure: RMSNorm, rotary positions, grouped-query attention and SwiGLU,
with or without biases and norms on queries and keys, and a tied head: own code on the parameters of the Hugging Face
module. Any other architecture can be sampled and evaluated, but not trained here.

The old log-probs come from this forward as well: sampling with a KV cache differs from it by rounding, which can exceed
the whole clip range of a length-normalised objective.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fspo.model.answers import Answers
from fspo.model.attention import attend, plan, rotate
from fspo.model.loading import Policy

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
ROTARY_TYPES = ("default", "linear", "llama3", "yarn")  # their frequencies do not depend on the length

TILE = 1 << 22  # elements of one tile: 16 MB of float32, which fits into a shared cache
KEEP = 1 << 26  # up to this many logits (256 MB) are kept for the backward; above it, tiles are computed again


# --- the model's parts ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """A model of the family: its modules, weights and sizes."""

    embed: nn.Embedding  # a module and not a tensor: its padding row gets no gradient
    layers: Any  # modules of Hugging Face
    norm: Tensor
    head: Tensor
    rotary: Any
    heads: int
    kv_heads: int
    head_size: int
    eps: float

    @property
    def embedding(self) -> Tensor:
        return self.embed.weight

    def rotary_tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of `positions` (N,), each (N, head size), from the model's own rotary module."""
        cos, sin = self.rotary(self.embedding, positions.unsqueeze(0))
        return cos[0], sin[0]


def family(policy: Policy) -> Family | None:
    """The model's parts, or None if this package does not compute it: another architecture, or adapters."""
    base = policy.model
    if type(base).__name__ not in ARCHITECTURES:
        return None
    config = base.config
    projections = {name: part for name, part in base.model.layers.named_modules() if name.endswith("_proj")}
    with_bias = ("q_proj", "k_proj", "v_proj")
    plain = (
        config.hidden_act == "silu"
        and getattr(config, "attention_dropout", 0.0) == 0.0
        and base.model.rotary_emb.rope_type in ROTARY_TYPES
        and "sliding_attention" not in (getattr(config, "layer_types", None) or [])
        and type(base.lm_head) is nn.Linear
        and base.lm_head.bias is None
        and type(base.model.embed_tokens) is nn.Embedding
        and all(type(part) is nn.Linear for part in projections.values())  # adapters are other modules
        and all(part.bias is None for name, part in projections.items() if not name.endswith(with_bias))
    )
    if not plain:
        return None
    heads = config.num_attention_heads
    return Family(
        embed=base.model.embed_tokens,
        layers=base.model.layers,
        norm=base.model.norm.weight,
        head=base.lm_head.weight,
        rotary=base.model.rotary_emb,
        heads=heads,
        kv_heads=config.num_key_value_heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
        eps=config.rms_norm_eps,
    )


def require_family(policy: Policy) -> Family:
    """The parts of a model that is to be trained."""
    parts = family(policy)
    if parts is None:
        raise ValueError(
            f"the local engine does not train {policy.spec!r} ({type(policy.model).__name__}): use a Llama, Qwen2 or "
            "Qwen3 without adapters, or train with --engine trl or verl"
        )
    return parts


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """y = w x / rms(x) over the last dimension."""
    y: Tensor = _RmsNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    return y


class _RmsNorm(torch.autograd.Function):
    """Three passes over the data in each direction; on a CPU torch's composite takes about twice as many."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        inverse: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = inverse.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        return (x * inverse).mul_(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight, inverse = ctx.saved_tensors
        unit = x * inverse
        flat = (grad * unit).view(-1, x.shape[-1])
        d_weight = flat.sum(0) if ctx.needs_input_grad[1] else None
        # mean of w g x / rms as a matrix-vector product: the sum over features needs no extra pass
        projection = (flat @ (weight / x.shape[-1])).view(inverse.shape)
        d_x = (grad * weight).addcmul_(unit, projection, value=-1.0).mul_(inverse)
        return d_x, d_weight, None


# --- log-probs of answers -------------------------------------------------------------------------------------------


class LogProbs(NamedTuple):
    """Per-token results, right-padded to (sequences, longest completion); padding is 0, and False in the mask."""

    logprobs: Tensor
    mask: Tensor
    entropy: Tensor | None


def logprobs(policy: Policy, batch: Answers, temperature: float = 1.0, with_entropy: bool = False) -> LogProbs:
    """Log-probs of all completion tokens at the sampling temperature, differentiable with respect to the model."""
    parts = require_family(policy)
    hidden, targets = _packed(parts, batch, policy.device)
    flat, entropy = token_logprobs(hidden, parts.head, targets, temperature, with_entropy)
    lengths = torch.tensor(batch.lengths, device=flat.device)
    mask = torch.arange(int(lengths.max()), device=flat.device) < lengths.unsqueeze(1)
    return LogProbs(_unpack(flat, mask), mask, None if entropy is None else _unpack(entropy, mask))


def _unpack(flat: Tensor, mask: Tensor) -> Tensor:
    return flat.new_zeros(mask.shape).masked_scatter(mask, flat)


def _packed(parts: Family, batch: Answers, device: torch.device) -> tuple[Tensor, Tensor]:
    """Final hidden states that predict the completion tokens, (tokens, D), and those tokens.

    The first token of a completion is predicted from the last token of the prompt; the last token of a completion
    predicts nothing, so it is not computed.
    """
    ids: list[int] = []
    positions: list[int] = []
    sequences: list[tuple[int, int, int, int]] = []
    prompt_start: list[int] = []
    for prompt in batch.prompts:
        prompt_start.append(len(ids))
        sequences.append((len(ids), len(prompt), 0, 0))
        ids += prompt
        positions += range(len(prompt))
    predictors: list[int] = []
    targets: list[int] = []
    for completion, g in zip(batch.completions, batch.group, strict=True):
        prompt_length = len(batch.prompts[g])
        start, length = len(ids), len(completion) - 1
        sequences.append((start, length, prompt_start[g], prompt_length))
        predictors.append(prompt_start[g] + prompt_length - 1)
        predictors += range(start, start + length)
        targets += completion
        ids += completion[:-1]
        positions += range(prompt_length, prompt_length + length)

    x = trunk(parts, ids, positions, sequences, device)
    chosen = x.index_select(0, torch.tensor(predictors, device=device))
    return rms_norm(chosen, parts.norm, parts.eps), torch.tensor(targets, device=device)


def trunk(
    parts: Family,
    ids: list[int],
    positions: list[int],
    sequences: list[tuple[int, int, int, int]],
    device: torch.device,
    cache: list[tuple[Tensor, Tensor]] | None = None,
) -> Tensor:
    """Hidden states (N, D) of packed tokens before the last norm; `sequences` as `attention.plan` takes them.

    When `cache` is given, each layer's rotated keys and values (N, kv heads, head size) are appended to it.
    """
    n = len(ids)
    x: Tensor = parts.embed(torch.tensor(ids, device=device))
    cos, sin = (t.to(x.dtype).unsqueeze(1) for t in parts.rotary_tables(torch.tensor(positions, device=device)))
    layout = plan(sequences, n, x.dtype, device)
    for layer in parts.layers:
        attention, mlp = layer.self_attn, layer.mlp
        h = rms_norm(x, layer.input_layernorm.weight, parts.eps)
        q = attention.q_proj(h).view(n, parts.heads, parts.head_size)
        k = attention.k_proj(h).view(n, parts.kv_heads, parts.head_size)
        v = attention.v_proj(h).view(n, parts.kv_heads, parts.head_size)
        if hasattr(attention, "q_norm"):
            q, k = rms_norm(q, attention.q_norm.weight, parts.eps), rms_norm(k, attention.k_norm.weight, parts.eps)
        if cache is not None:
            cache.append((rotate(k, cos, sin), v))
        x = x + attention.o_proj(attend(q, k, v, cos, sin, layout))
        h = rms_norm(x, layer.post_attention_layernorm.weight, parts.eps)
        x = x + mlp.down_proj(F.silu(mlp.gate_proj(h)) * mlp.up_proj(h))
    return x


# --- log-probs from hidden states -----------------------------------------------------------------------------------
#
# Without the (tokens, vocabulary) logits. With h a token's hidden state, W the head, T the temperature and y the token:
#
#     z = W h / T          log p(y) = z_y - log sum_j exp z_j          H = log sum_j exp z_j - sum_j p_j z_j
#
# For 2,048 tokens and a vocabulary of 151,936 the logits alone take 1.2 GB, and autograd keeps several copies. Here the
# vocabulary is processed in tiles that fit into the processor's cache; the backward computes each tile again and turns
# it into the gradient in place. If all tiles together are small (a small vocabulary, a short micro-batch), they are
# kept instead, which saves the second product.


def token_logprobs(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float = 1.0, with_entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Log-probs of `targets` (N,) and, with `with_entropy`, the entropy (N,) of the distribution of each.

    `hidden` is (N, D) and `weight` (V, D). Both results can be differentiated with respect to both.
    """
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


class _Head(torch.autograd.Function):
    """Log-probs and entropies of all rows, with both gradients in closed form."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, entropy: bool, train: bool
    ) -> tuple[Tensor, Tensor]:
        n, vocabulary = hidden.shape[0], weight.shape[0]
        scaled = hidden / temperature if temperature != 1.0 else hidden
        spans = _spans(n, vocabulary)
        keep = train and n * vocabulary <= KEEP
        buffer = hidden.new_empty(n * (vocabulary if keep else spans[0][1] - spans[0][0]))
        top = hidden.new_full((n, 1), -torch.inf)
        total, moment = torch.zeros_like(top), torch.zeros_like(top)
        chosen = torch.zeros_like(top)
        for a, b in spans:
            z = _logits(scaled, weight, a, b, buffer[n * a :] if keep else buffer)
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
        g = grad.unsqueeze(1)
        gh = grad_entropy.unsqueeze(1) if ctx.entropy else None
        d_hidden = torch.zeros_like(scaled) if need_hidden else None
        d_weight = torch.empty_like(weight) if need_weight else None
        spans = _spans(n, vocabulary)
        buffer = scaled.new_empty(n * (spans[0][1] - spans[0][0])) if kept is None else None
        rows = torch.arange(n, device=targets.device)
        for a, b in spans:
            if buffer is None:
                p = (kept[n * a : n * b].view(n, b - a) - lse).exp_()
            else:
                p = _logits(scaled, weight, a, b, buffer).sub_(lse).exp_()
            tile = p * -g if gh is not None else p.mul_(-g)
            if gh is not None:
                # p log p tends to 0 with p; the clamp keeps an underflowed p from giving 0 * -inf.
                tile.sub_(p.clamp_min(1e-38).log_().add_(h).mul_(p).mul_(gh))
            picked = rows[(targets >= a) & (targets < b)]
            tile[picked, targets[picked] - a] += g[picked, 0]
            if d_hidden is not None:
                d_hidden.addmm_(tile, weight[a:b])
            if d_weight is not None:
                torch.mm(tile.t(), scaled, out=d_weight[a:b])
        if d_hidden is not None and ctx.temperature != 1.0:
            d_hidden /= ctx.temperature
        return d_hidden, d_weight, None, None, None, None
