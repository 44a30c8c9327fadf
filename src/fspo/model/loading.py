"""Loading a policy: a Hugging Face folder or hub name, a GGUF file, or a `tiny:` preset; always in float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi, try_to_load_from_cache
from transformers import AutoModelForCausalLM, AutoTokenizer

from fspo import runtime
from fspo.model import tiny


@dataclass
class Policy:
    """A causal language model and its tokenizer, with what rollouts and training need from both."""

    model: Any
    tokenizer: Any
    spec: str = ""
    eos_ids: tuple[int, ...] = field(default=())

    @property
    def device(self) -> torch.device:
        device: torch.device = next(self.model.parameters()).device
        return device

    @property
    def context(self) -> int | None:
        """The most tokens of a prompt and its answer together; None where the model names no limit."""
        limit = getattr(self.model.config, "max_position_embeddings", None)
        return limit if isinstance(limit, int) and limit > 0 else None

    def trainable(self) -> list[torch.nn.Parameter]:
        """The parameters with a gradient."""
        return [p for p in self.model.parameters() if p.requires_grad]


def load(spec: str, *, device: str = "cpu", seed: int = 0) -> Policy:
    """Load `spec`: a folder or hub name, a path ending in `.gguf`, or `tiny:LAYERSxWIDTH`.

    `seed` determines the weights of a `tiny:` model; pretrained weights do not depend on it.
    """
    model: Any
    tokenizer: Any
    if spec.startswith("tiny:"):
        model, tokenizer = tiny.build(spec.removeprefix("tiny:"), seed)
    elif spec.endswith(".gguf"):
        model, tokenizer = _load_gguf(Path(spec))
    else:
        with _reading(spec):  # code that a model brings is never executed
            if not Path(spec).is_dir() and not isinstance(try_to_load_from_cache(spec, "config.json"), str):
                HfApi().model_info(spec, timeout=10)  # fails at once, where a loader asks the hub many times over
            model = AutoModelForCausalLM.from_pretrained(spec, dtype=torch.float32, trust_remote_code=False)
            tokenizer = AutoTokenizer.from_pretrained(spec, trust_remote_code=False)
    try:
        model.to(torch.device(device))
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0][:200]
        raise ValueError(f"model.device = {device!r} cannot be used ({reason}): set model.device=cpu") from None
    model.eval()  # with dropout the log-probs for training would differ from those that the tokens were sampled with
    return Policy(model, tokenizer, spec, end_ids(model, tokenizer))


@contextmanager
def _reading(spec: str) -> Iterator[None]:
    """Turn any exception of a model loader into a one-sentence ValueError."""
    try:
        yield
    except (ModuleNotFoundError, MemoryError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"the model {spec!r} cannot be loaded ({type(error).__name__}: {reason}): check the spelling of its folder "
            "or hub name, and that its files are whole and those of a causal language model"
        ) from error


def save(policy: Policy, folder: str | Path) -> None:
    """Write model and tokenizer as safetensors and JSON."""
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)


def end_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """The ids that end an answer: from the generation settings, else from the model's config, else the tokenizer's."""
    generation = getattr(model, "generation_config", None)
    for source in (getattr(generation, "eos_token_id", None), model.config.eos_token_id, tokenizer.eos_token_id):
        if source is not None:
            return tuple(source) if isinstance(source, list | tuple) else (int(source),)
    raise ValueError("the model has no end-of-sequence token; set eos_token_id in its config.json")


def _load_gguf(path: Path) -> tuple[Any, Any]:
    """The dequantised weights of a GGUF file, as an ordinary model that can be trained and saved."""
    if not path.is_file():
        raise ValueError(f"there is no GGUF file at {path}; check the path")
    with _reading(str(path)):
        model: Any = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    # The weights are dense now, but save_pretrained refuses a model that is marked as quantised.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.is_quantized, model.hf_quantizer = False, None
    # transformers' converter takes the bos id as the end token (ggml.py, GGUFLlamaConverter); the model's id is right.
    eos = model.config.eos_token_id
    if isinstance(eos, int) and tokenizer.eos_token_id != eos:
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(eos)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(model.config.pad_token_id or eos)
    return model, tokenizer


def set_threads(policy: Policy, threads: int = 0, processes: int = 1) -> int:
    """Compute with this many threads, or for 0 with the number that suits the model's size and the number of processes
    on this machine; returns the number."""
    chosen = threads or runtime.threads(sum(p.numel() for p in policy.model.parameters()), processes=processes)
    torch.set_num_threads(chosen)
    runtime.keep_heap()
    return chosen
