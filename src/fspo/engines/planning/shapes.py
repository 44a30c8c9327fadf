"""The sizes of a decoder-only transformer, and its parameters, from its configuration alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Shape:
    """A model of the Llama family: grouped-query attention and SwiGLU, no mixture of experts."""

    layers: int
    width: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    tied: bool
    qk_norm: bool

    @property
    def query(self) -> int:
        """Size of all queries of a token."""
        return self.heads * self.head_size

    @property
    def key(self) -> int:
        """Size of all keys of a token, and of all values."""
        return self.kv_heads * self.head_size

    @property
    def embedding(self) -> int:
        """Parameters of the embedding or of the head."""
        return self.vocabulary * self.width

    @property
    def layer(self) -> int:
        """Parameters of one layer."""
        norms = 2 * self.width + (2 * self.head_size if self.qk_norm else 0)
        return self.width * (2 * self.query + 2 * self.key + 3 * self.intermediate) + norms

    @property
    def parameters(self) -> int:
        """All parameters; a tied head counts once."""
        return self.layers * self.layer + self.embedding * (1 if self.tied else 2) + self.width

    def adapters(self, rank: int) -> int:
        """Parameters of LoRA adapters on all linear layers but the head."""
        ins_and_outs = (
            (self.width, self.query), (self.width, self.key), (self.width, self.key), (self.query, self.width),
            (self.width, self.intermediate), (self.width, self.intermediate), (self.intermediate, self.width),
        )  # fmt: skip
        return self.layers * rank * sum(a + b for a, b in ins_and_outs)

    def cached(self, bytes_per_value: int) -> int:
        """Bytes of the keys and values of one token in all layers."""
        return 2 * self.layers * self.key * bytes_per_value


QWEN_VOCABULARY = 151936
KNOWN = {
    "Qwen/Qwen3-0.6B-Base": Shape(28, 1024, 3072, 16, 8, 128, QWEN_VOCABULARY, True, True),
    "Qwen/Qwen3-1.7B-Base": Shape(28, 2048, 6144, 16, 8, 128, QWEN_VOCABULARY, True, True),
    "Qwen/Qwen3-4B-Base": Shape(36, 2560, 9728, 32, 8, 128, QWEN_VOCABULARY, True, True),
    "Qwen/Qwen3-8B-Base": Shape(36, 4096, 12288, 32, 8, 128, QWEN_VOCABULARY, False, True),
    "HuggingFaceTB/SmolLM2-135M-Instruct": Shape(30, 576, 1536, 9, 3, 64, 49152, True, False),
}
"""Sizes of the recipes' models and their family, as in the config.json of each, so that no network is needed."""


def shape_of(path: str) -> Shape:
    """The sizes of `model.path`: a known name, `tiny:LAYERSxWIDTH`, a folder, or a hub name."""
    if path in KNOWN:
        return KNOWN[path]
    if path.startswith("tiny:"):
        from fspo.model import tiny

        layers, width = tiny.parse(path.removeprefix("tiny:"))
        heads = width // tiny.HEAD_SIZE
        vocabulary = len(tiny.SPECIAL) + len(tiny.ALPHABET)
        kv_heads = heads // 2 if heads % 2 == 0 else heads
        return Shape(layers, width, 3 * width, heads, kv_heads, tiny.HEAD_SIZE, vocabulary, True, True)
    if path.endswith(".gguf"):
        raise ValueError(f"the sizes of {path} are in its weights: give fspo plan the folder or hub name of the model")
    return from_config(_config(path), path)


def from_config(config: Mapping[str, Any], path: str) -> Shape:
    """The sizes in a config.json."""
    if config.get("num_experts") or config.get("num_local_experts"):
        raise ValueError(f"{path} is a mixture of experts: fspo plan knows dense models only")
    try:
        heads = config["num_attention_heads"]
        return Shape(
            config["num_hidden_layers"], config["hidden_size"], config["intermediate_size"], heads,
            config.get("num_key_value_heads") or heads, config.get("head_dim") or config["hidden_size"] // heads,
            config["vocab_size"], bool(config.get("tie_word_embeddings", False)), config.get("model_type") == "qwen3",
        )  # fmt: skip
    except KeyError as error:
        raise ValueError(f"the configuration of {path} has no {error}: fspo plan knows the Llama family only") from None


def _config(path: str) -> Mapping[str, Any]:
    file = Path(path) / "config.json"
    if file.is_file():
        found: Mapping[str, Any] = json.loads(file.read_text())
        return found
    from transformers import AutoConfig

    try:
        values: Mapping[str, Any] = AutoConfig.from_pretrained(path).to_dict()
    except OSError:
        raise ValueError(
            f"the configuration of {path!r} was not found: give a folder with its config.json, or one of "
            f"{', '.join(KNOWN)}"
        ) from None
    return values
