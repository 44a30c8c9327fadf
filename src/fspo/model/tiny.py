"""Small Qwen3 models with random weights and a character tokenizer.

A model of less than a million parameters learns a procedural task in minutes on two CPU cores. It is an ordinary
`Qwen3ForCausalLM` with a fast tokenizer, so the folder it is saved to loads in TRL, verl and vLLM.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

# The end token has the name of Qwen's own, which verl looks up in every model of the family.
SPECIAL = ("<pad>", "<bos>", "<|im_end|>")
# Those of the built-in tasks' prompts and solutions, and a few more: 61, with the special tokens a vocabulary of 64.
ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789 \n:=+-*/()[]{}<>,.?#|;_^!"
HEAD_SIZE = 32


def tokenizer() -> PreTrainedTokenizerFast:
    """One token per character. A character outside the alphabet raises: dropping it would silently change the task."""
    vocab = {token: i for i, token in enumerate((*SPECIAL, *ALPHABET))}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    backend.decoder = decoders.Fuse()
    pad, bos, eos = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        model_max_length=32768,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


def parse(name: str) -> tuple[int, int]:
    """Layers and width of a preset: `2x64` is 2 layers of width 64."""
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", name)
    if match is None:
        raise ValueError(f"model 'tiny:{name}' is not of the form tiny:LAYERSxWIDTH; write for example tiny:4x128")
    layers, width = int(match[1]), int(match[2])
    if width % HEAD_SIZE:
        raise ValueError(f"the width of 'tiny:{name}' is {width}; it must be a multiple of {HEAD_SIZE}")
    return layers, width


def build(name: str, seed: int = 0) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """A freshly initialised model of the preset `name`; the same seed gives the same weights."""
    layers, width = parse(name)
    heads = width // HEAD_SIZE
    settings: dict[str, Any] = {
        "vocab_size": len(SPECIAL) + len(ALPHABET),
        "hidden_size": width,
        "intermediate_size": 3 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2 if heads % 2 == 0 else heads,
        "head_dim": HEAD_SIZE,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        # A rotary base of 10,000 suits the few hundred positions that these models are trained on.
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        # The usual 0.02 suits widths in the thousands; a narrow model trains better from about 1 / sqrt(width).
        "initializer_range": 0.7 * width**-0.5,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(Qwen3Config(**settings))
    return model, tokenizer()
