"""A short run whose answers come from vLLM, with and without LoRA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel

from fspo.local.batch import Batch
from fspo.local.config import read
from fspo.local.forward import logprobs
from fspo.local.loop import train
from fspo.local.models import Policy, load
from fspo.local.records import read_lines

SETTINGS = [
    "model.path=tiny:2x64",
    "task={name: sort, graded: true, n_min: 2, n_max: 4, letters: 2}",
    "warmup=null",
    "rollout={engine: vllm, cache_gib: 0.25, prompts: 16, group: 16, max_new_tokens: 8}",
    "update={epochs: 2, minibatches: 2, lr: 0.003}",
    "steps=2",
    "eval.prompts=8",
    "checkpoint={every: 1, keep: 2}",
    "log.samples=256",
]


def likelihood(policy: Policy, samples: list[dict[str, Any]]) -> float:
    """The log-probability of all answers together."""
    read = policy.tokenizer
    prompts = [read(s["prompt"]).input_ids for s in samples]
    ends = [[] if s["truncated"] else [policy.eos_ids[0]] for s in samples]
    answers = [read(s["completion"]).input_ids + end for s, end in zip(samples, ends, strict=True)]
    with torch.no_grad():
        return logprobs(policy, Batch(prompts, answers, range(len(prompts)))).logprobs.sum().item()


@pytest.mark.parametrize("lora", [False, True])
def test_answers_come_from_the_weights_of_their_step(tmp_path: Path, lora: bool) -> None:
    """With a learning rate that moves the policy far, what the second step samples is likelier under the weights after
    the first than under the initial ones; a sampler left behind would have it the other way round."""
    train(read(None, SETTINGS + ["model.lora={rank: 8, alpha: 16}"] * lora), tmp_path)
    metrics = read_lines(tmp_path / "metrics.jsonl")
    assert [m["step"] for m in metrics] == [1, 2]
    assert metrics[0]["grad_norm"] > 0
    initial, moved = load("tiny:2x64"), load("tiny:2x64")
    saved = tmp_path / "checkpoints" / "step-000001"
    moved.model = PeftModel.from_pretrained(moved.model, saved) if lora else load(str(saved)).model
    samples = read_lines(tmp_path / "samples.jsonl")
    assert len(samples) == 512
    by_step = [[s for s in samples if s["step"] == step] for step in (1, 2)]
    assert likelihood(initial, by_step[0]) > likelihood(moved, by_step[0]) + 10
    assert likelihood(moved, by_step[1]) > likelihood(initial, by_step[1]) + 10
