"""A model small enough that every continuation of three words can be listed with its probability."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from fspo.model.loading import Policy

VOCABULARY = 12


def build(seed: int) -> Policy:
    """Two layers and twelve words. A Llama with a tied head: of all architectures the one vLLM reloads worst."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, max_position_embeddings=256, initializer_range=0.25, eos_token_id=1,
        bos_token_id=2, pad_token_id=0, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():  # norms start at 1, where a mistake in them would not show
        for p in model.parameters():
            if p.ndim == 1:
                p += 0.3 * torch.randn_like(p)
    return Policy(model, None, "llama", (1,))
