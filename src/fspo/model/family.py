"""The weights of the Llama family by name: Llama (and SmolLM2), Qwen2 and Qwen3.

These architectures share one structure: RMSNorm, rotary positions, grouped-query attention and SwiGLU, with or without
biases, norms on queries and keys, and a tied head. This package computes them with its own code on the parameters of
the Hugging Face module, so that optimizers and checkpoints work as usual. Any other architecture is computed by the
module's own forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fspo.model.loading import Policy

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
ROTARY_TYPES = ("default", "linear", "llama3", "yarn")  # their frequencies do not depend on the length


@dataclass(frozen=True)
class Layer:
    """One layer; the projections are modules, so that a LoRA layer is called like any other."""

    norm: Tensor
    q: nn.Module
    k: nn.Module
    v: nn.Module
    o: nn.Module
    q_norm: Tensor | None
    k_norm: Tensor | None
    mlp_norm: Tensor
    gate: nn.Module
    up: nn.Module
    down: nn.Module


@dataclass(frozen=True)
class Family:
    """A model of the family: its weights and sizes."""

    embed: nn.Embedding  # a module and not a tensor: its padding row gets no gradient
    layers: tuple[Layer, ...]
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
    """The model's parts, or None if only the module's own forward computes it exactly."""
    base = policy.base()
    if type(base).__name__ not in ARCHITECTURES:
        return None
    config = base.config
    plain = (
        config.hidden_act == "silu"
        and getattr(config, "attention_dropout", 0.0) == 0.0
        and base.model.rotary_emb.rope_type in ROTARY_TYPES
        and "sliding_attention" not in (getattr(config, "layer_types", None) or [])
        and type(base.lm_head) is nn.Linear
        and base.lm_head.bias is None
        and type(base.model.embed_tokens) is nn.Embedding
    )
    layers = tuple(_layer(block) for block in base.model.layers) if plain else ()
    if not plain or not all(_linear(m) for layer in layers for m in vars(layer).values() if isinstance(m, nn.Module)):
        return None
    heads = config.num_attention_heads
    return Family(
        embed=base.model.embed_tokens,
        layers=layers,
        norm=base.model.norm.weight,
        head=base.lm_head.weight,
        rotary=base.model.rotary_emb,
        heads=heads,
        kv_heads=config.num_key_value_heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
        eps=config.rms_norm_eps,
    )


def dense(module: Any) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a linear layer, with LoRA's product added to the weight; for use without gradients."""
    base = getattr(module, "base_layer", module)
    weight = base.weight
    for name in getattr(module, "active_adapters", ()):
        weight = weight + module.get_delta_weight(name).to(weight.dtype)
    return weight, base.bias


def _layer(block: Any) -> Layer:
    attention, mlp = block.self_attn, block.mlp
    return Layer(
        norm=block.input_layernorm.weight,
        q=attention.q_proj,
        k=attention.k_proj,
        v=attention.v_proj,
        o=attention.o_proj,
        q_norm=attention.q_norm.weight if hasattr(attention, "q_norm") else None,
        k_norm=attention.k_norm.weight if hasattr(attention, "k_norm") else None,
        mlp_norm=block.post_attention_layernorm.weight,
        gate=mlp.gate_proj,
        up=mlp.up_proj,
        down=mlp.down_proj,
    )


def _linear(module: nn.Module) -> bool:
    """Whether this is a plain linear layer, or one with peft's plain LoRA: no variant, no dropout, not merged."""
    if type(module) is nn.Linear:
        return True
    if type(module).__module__ != "peft.tuners.lora.layer" or type(module).__name__ != "Linear":
        return False
    dropouts = module.lora_dropout.values()  # type: ignore[operator]
    return (
        type(module.base_layer) is nn.Linear
        and not module.merged
        and not module.disable_adapters
        and not any(module.use_dora.values())  # type: ignore[operator]
        and all(isinstance(d, nn.Identity) for d in dropouts)
    )


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """y = w x / rms(x) over the last dimension."""
    y: Tensor = _RmsNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    return y


class _RmsNorm(torch.autograd.Function):
    """Three passes over the data in each direction; on a CPU torch's composite takes about twice as many."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
        inverse: Tensor = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        inverse = inverse.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        return (wide * inverse).mul_(weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight, inverse = ctx.saved_tensors
        wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
        unit = wide * inverse
        flat = (grad * unit).view(-1, x.shape[-1])
        d_weight = flat.sum(0).to(weight.dtype) if ctx.needs_input_grad[1] else None
        # mean of w g x / rms as a matrix-vector product: the sum over features needs no extra pass
        pull = (flat @ (weight.to(flat.dtype) / x.shape[-1])).view(inverse.shape)
        d_x = (grad * weight).addcmul_(unit, pull, value=-1.0).mul_(inverse)
        return d_x.to(x.dtype), d_weight, None
