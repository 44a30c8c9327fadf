"""A short run whose answers come from vLLM, with and without LoRA."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import PeftModel

from fspo.config import read
from fspo.model.completions import Completions
from fspo.model.forward import logprobs
from fspo.model.loading import Policy, load
from fspo.runs import Metrics, Sample, read_lines
from fspo.training.loop import train

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


def likelihood(policy: Policy, samples: list[Sample]) -> float:
    """The log-probability of all answers together."""
    encode = policy.tokenizer
    prompts = [encode(s.prompt).input_ids for s in samples]
    ends = [[] if s.truncated else [policy.eos_ids[0]] for s in samples]
    answers = [encode(s.completion).input_ids + end for s, end in zip(samples, ends, strict=True)]
    with torch.no_grad():
        return logprobs(policy, Completions(prompts, answers, range(len(prompts)))).logprobs.sum().item()


@pytest.mark.parametrize("lora", [False, True])
def test_answers_come_from_the_weights_of_their_step(tmp_path: Path, lora: bool) -> None:
    """With a learning rate that moves the policy far, the answers of the second step are likelier under the weights
    after the first step than under the initial ones. A sampler with old weights would give the opposite."""
    train(read(None, SETTINGS + ["model.lora={rank: 8, alpha: 16}"] * lora), tmp_path)
    metrics = read_lines(tmp_path, Metrics)
    assert [m.step for m in metrics] == [1, 2]
    assert (metrics[0].grad_norm or 0) > 0
    initial, moved = load("tiny:2x64"), load("tiny:2x64")
    saved = tmp_path / "checkpoints" / "step-000001"
    moved.model = PeftModel.from_pretrained(moved.model, saved) if lora else load(str(saved)).model
    samples = read_lines(tmp_path, Sample)
    assert len(samples) == 512
    by_step = [[s for s in samples if s.step == step] for step in (1, 2)]
    assert likelihood(initial, by_step[0]) > likelihood(moved, by_step[0]) + 10
    assert likelihood(moved, by_step[1]) > likelihood(initial, by_step[1]) + 10


def test_the_samplers_mismatch_is_corrected(tmp_path: Path) -> None:
    """The same weights compute both log-probs, up to rounding: a correction of them changes the updates by no more."""
    losses = []
    for name, more in (("plain", []), ("corrected", ["objective.mismatch={level: sequence, mode: truncate}"])):
        train(read(None, [*SETTINGS, "steps=1", *more]), tmp_path / name)
        losses.append(read_lines(tmp_path / name, Metrics)[0].loss)
    assert losses[1] == pytest.approx(losses[0], rel=1e-3, abs=1e-5)
