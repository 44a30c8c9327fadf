"""Policies load from presets, folders and GGUF files, and what is saved loads again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from fspo.model import tiny
from fspo.model.answers import Answers
from fspo.model.forward import logprobs
from fspo.model.loading import load, save
from fspo.rollout.generate import generate


def test_the_presets_have_the_sizes_they_name() -> None:
    policy = load("tiny:4x128")
    assert 780_000 < sum(p.numel() for p in policy.model.parameters()) < 820_000
    config = policy.model.config
    assert (config.num_hidden_layers, config.hidden_size, config.head_dim) == (4, 128, 32)
    assert config.tie_word_embeddings
    assert load("tiny:2x64").model.config.num_hidden_layers == 2


def test_the_seed_decides_the_weights_and_leaves_the_global_stream_alone() -> None:
    state = torch.get_rng_state()
    a, b, c = (load("tiny:2x64", seed=s).model.model.layers[1].mlp.up_proj.weight for s in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_every_character_round_trips_as_one_token() -> None:
    tokenizer = tiny.tokenizer()
    text = tiny.ALPHABET + " a  b\n\n"
    ids = tokenizer(text).input_ids
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == text
    assert len(tokenizer) == 64
    assert len({tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id}) == 3


def test_a_saved_preset_loads_everywhere(tmp_path: Path) -> None:
    policy = load("tiny:2x64", seed=3)
    save(policy, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = tokenizer("sort: cab=abc\n", return_tensors="pt").input_ids
    assert tokenizer.decode(ids[0]) == "sort: cab=abc\n"
    with torch.no_grad():
        assert torch.equal(model(ids).logits, policy.model(ids).logits)
    again = load(str(tmp_path))
    assert again.eos_ids == policy.eos_ids == (tokenizer.eos_token_id,)
    assert generate(again, [[5, 6]], max_new_tokens=9) == generate(policy, [[5, 6]], max_new_tokens=9)


def test_a_gguf_file_loads_dequantised(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "model.gguf"
    _write_gguf(gguf, path)
    policy = load(str(path))
    assert policy.eos_ids == (2,)
    assert policy.tokenizer.eos_token_id == 2
    assert policy.model.model.layers[0].mlp.up_proj.weight.dtype == torch.float32
    assert torch.isfinite(logprobs(policy, Answers([[3, 4]], [[5, 2]], [0])).logprobs).all()
    save(policy, tmp_path / "saved")
    assert load(str(tmp_path / "saved")).eos_ids == (2,)


def _write_gguf(gguf: Any, path: Path) -> None:
    """A Llama of one layer, with random weights and a byte-pair tokenizer whose end token is converted wrongly."""
    writer = gguf.GGUFWriter(path, "llama")
    d, heads, inner, words = 32, 4, 64, 16
    writer.add_context_length(64)
    writer.add_embedding_length(d)
    writer.add_block_count(1)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(words)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<unk>", "<s>", "</s>", *"abcdefghijk", "ab", "cd"])
    writer.add_token_types([3, 3, 3] + [1] * 13)
    writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    rng = torch.Generator().manual_seed(0)

    layer = {
        "attn_norm": (d,), "ffn_norm": (d,), "attn_q": (d, d), "attn_k": (d // 2, d), "attn_v": (d // 2, d),
        "attn_output": (d, d), "ffn_gate": (inner, d), "ffn_up": (inner, d), "ffn_down": (d, inner),
    }  # fmt: skip
    shapes = {"token_embd": (words, d), "output_norm": (d,)} | {f"blk.0.{name}": size for name, size in layer.items()}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", (0.1 * torch.randn(*shape, generator=rng)).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("spec", "word"),
    [("tiny:4by128", "tiny:LAYERSxWIDTH"), ("tiny:2x50", "multiple of 32"), ("/nowhere/model.gguf", "no GGUF file")],
)
def test_a_bad_name_gets_one_sentence(spec: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        load(spec)
