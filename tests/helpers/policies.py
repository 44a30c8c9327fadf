"""Tiny models of each architecture, random ragged batches, and the Hugging Face forward to compare with."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf
import yaml

from fspo.model.answers import Answers
from fspo.model.loading import Policy, load

torch.set_num_threads(1)  # these models are too small for a second thread

VOCABULARY = 40
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.2,
    "eos_token_id": 1, "bos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip

LLAMA3: dict[str, Any] = {
    "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
MODELS: dict[str, Callable[[], hf.PreTrainedModel]] = {
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES, tie_word_embeddings=False)),
    "llama3": lambda: hf.LlamaForCausalLM(
        hf.LlamaConfig(**SIZES, tie_word_embeddings=False, rope_parameters=dict(LLAMA3))
    ),
    "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**SIZES, tie_word_embeddings=True)),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**SIZES, tie_word_embeddings=True, head_dim=16)),
    "qwen3-no-groups": lambda: hf.Qwen3ForCausalLM(
        hf.Qwen3Config(**{**SIZES, "num_key_value_heads": 4}, tie_word_embeddings=False, head_dim=8)
    ),
}


def make(name: str, dtype: torch.dtype = torch.float32) -> Policy:
    """A policy of one of MODELS with random weights and no tokenizer."""
    torch.manual_seed(0)
    model: Any = MODELS[name]()
    with torch.no_grad():  # norms and biases start at 1 and 0, where a mistake in them would not show
        for p in model.parameters():
            if p.ndim == 1:
                p += 0.3 * torch.randn_like(p)
    return Policy(model.to(dtype).eval(), None, name, (1,))


def adapter_run(run: Path, folder: Path) -> None:
    """A copy of a run as TRL leaves one with LoRA: adapters on the model that it started from."""
    from peft import LoraConfig, get_peft_model

    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("checkpoints"))
    start = load(yaml.safe_load((run / "config.yaml").read_text())["model"]["path"])
    settings = LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    get_peft_model(start.model, settings).save_pretrained(str(folder / "model"))
    start.tokenizer.save_pretrained(folder / "model")


def make_gpt2() -> Policy:
    """A policy that is not of the Llama family."""
    torch.manual_seed(0)
    config = hf.GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=256, eos_token_id=1)
    return Policy(hf.GPT2LMHeadModel(config).eval(), None, "gpt2", (1,))


def ragged(seed: int, prompts: int = 4, longest: int = 25) -> Answers:
    """Groups of 1 to 5, prompts of 1 to 20 tokens, completions of 1 to `longest` tokens, groups interleaved."""
    rng = random.Random(seed)

    def ids(length: int) -> list[int]:
        return [rng.randrange(VOCABULARY) for _ in range(length)]

    group = [g for g in range(prompts) for _ in range(rng.randint(1, 5))]
    rng.shuffle(group)
    completions = [ids(rng.randint(1, longest)) for _ in group]
    completions[0] = completions[0][:1]
    return Answers([ids(rng.randint(1, 20)) for _ in range(prompts)], completions, group)


def reference(policy: Policy, batch: Answers, temperature: float) -> list[torch.Tensor]:
    """Log-probs from the module's own forward, one unpadded sequence at a time."""
    out = []
    for completion, g in zip(batch.completions, batch.group, strict=True):
        prompt = list(batch.prompts[g])
        ids = torch.tensor([[*prompt, *completion]], device=policy.device)
        logits = policy.model(ids, use_cache=False).logits[0, len(prompt) - 1 : -1] / temperature
        out.append(logits.log_softmax(-1).gather(1, torch.tensor(completion).unsqueeze(1)).squeeze(1))
    return out
