"""What a recipe needs to run in seconds: a tiny model of the same architecture, and ten rows of data."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, Qwen3Config

from fspo import recipes

RECIPES = recipes.FOLDER

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate((*SPECIAL, *letters))}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=SPECIAL[0], eos_token=SPECIAL[2], chat_template=TEMPLATE,
        additional_special_tokens=[SPECIAL[1]],
    )  # fmt: skip


def model(kind: str, folder: Path) -> Path:
    """A model of the architecture `qwen3` or `llama`, in Hugging Face's format."""
    settings = {
        "vocab_size": 259, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "tie_word_embeddings": True,
        "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 2, "max_position_embeddings": 2048,
    }  # fmt: skip
    torch.manual_seed(0)
    config = {"qwen3": Qwen3Config, "llama": LlamaConfig}[kind](**settings)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def questions(path: Path, more: int) -> Path:
    """Ten sums."""
    rows = [{"question": f"What is {a} + {a + more}?", "answer": f"#### {2 * a + more}"} for a in range(10)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def overrides(recipe: str, folder: Path) -> list[str]:
    """Settings that make a recipe small; all others are the recipe's own."""
    kind = "llama" if recipe.startswith("smollm2") else "qwen3"
    held_out = questions(folder / "held_out.jsonl", 5)
    rows = f"{{name: 'jsonl:{questions(folder / 'rows.jsonl', 3)}', eval_path: {held_out}}}"
    small = [
        f"model.path={model(kind, folder / 'tiny')}", "model.device=cpu", "model.dtype=float32", "steps=2",
        "rollout.prompts=4", "rollout.group=2", "rollout.max_new_tokens=8", "update.minibatches=2",
        "update.lr_warmup=0", "eval.prompts=4", "eval.every=2",
    ]  # fmt: skip
    if recipe.startswith("smollm2"):
        return small
    # A random model ends few answers, and an update of truncated ones only has no rows.
    return [*small, f"task={rows}", f"eval.task={rows}", "engines.trl.mask_truncated_completions=false"]
