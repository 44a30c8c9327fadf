"""The forward pass for training: log-probs of completions, with one copy of each group's prompt and no padding.

The old log-probs come from this forward as well: sampling with a KV cache differs from it by rounding (about 1e-3 in
low precision), which is more than the whole clip range of a length-normalised objective.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fspo.model.attention import attend, plan, rotate
from fspo.model.completions import Completions
from fspo.model.family import Family, family, rms_norm
from fspo.model.loading import Policy
from fspo.model.logprobs import token_logprobs


class LogProbs(NamedTuple):
    """Per-token results, right-padded to (sequences, longest completion); padding is 0, and False in the mask."""

    logprobs: Tensor
    mask: Tensor
    entropy: Tensor | None


def logprobs(policy: Policy, batch: Completions, temperature: float = 1.0, with_entropy: bool = False) -> LogProbs:
    """Log-probs of all completion tokens at the sampling temperature, differentiable with respect to the model."""
    parts = family(policy)
    if parts is None:
        flat, entropy = _padded(policy, batch, temperature, with_entropy)
    else:
        hidden, targets = _packed(parts, batch, policy.device)
        flat, entropy = token_logprobs(hidden, parts.head, targets, temperature, with_entropy)
    lengths = torch.tensor(batch.lengths, device=flat.device)
    mask = torch.arange(int(lengths.max()), device=flat.device) < lengths.unsqueeze(1)
    return LogProbs(_unpack(flat, mask), mask, None if entropy is None else _unpack(entropy, mask))


def _unpack(flat: Tensor, mask: Tensor) -> Tensor:
    return flat.new_zeros(mask.shape).masked_scatter(mask, flat)


def _packed(parts: Family, batch: Completions, device: torch.device) -> tuple[Tensor, Tensor]:
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
    places = plan(sequences, n, x.dtype, device)
    for layer in parts.layers:
        h = rms_norm(x, layer.norm, parts.eps)
        q = layer.q(h).view(n, parts.heads, parts.head_size)
        k = layer.k(h).view(n, parts.kv_heads, parts.head_size)
        v = layer.v(h).view(n, parts.kv_heads, parts.head_size)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = rms_norm(q, layer.q_norm, parts.eps), rms_norm(k, layer.k_norm, parts.eps)
        if cache is not None:
            cache.append((rotate(k, cos, sin), v))
        x = x + layer.o(attend(q, k, v, cos, sin, places))
        h = rms_norm(x, layer.mlp_norm, parts.eps)
        x = x + layer.down(F.silu(layer.gate(h)) * layer.up(h))
    return x


def _padded(policy: Policy, batch: Completions, temperature: float, with_entropy: bool) -> tuple[Tensor, Tensor | None]:
    """Any other architecture: the module's own forward on right-padded sequences, and its own logits."""
    whole = [[*batch.prompts[g], *c] for c, g in zip(batch.completions, batch.group, strict=True)]
    width = max(map(len, whole))
    ids = torch.tensor([s + [policy.pad_id] * (width - len(s)) for s in whole], device=policy.device)
    attention = torch.tensor([[1] * len(s) + [0] * (width - len(s)) for s in whole], device=policy.device)
    logits = policy.model(input_ids=ids[:, :-1], attention_mask=attention[:, :-1], use_cache=False).logits
    prompt = torch.tensor([len(batch.prompts[g]) for g in batch.group], device=policy.device).unsqueeze(1)
    at = torch.arange(width - 1, device=policy.device)
    trained = (at >= prompt - 1) & attention[:, 1:].bool()
    z = (logits[trained] / temperature).to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    flat = z.gather(1, ids[:, 1:][trained].unsqueeze(1)).squeeze(1)
    return flat, -(z.exp() * z).sum(-1) if with_entropy else None
