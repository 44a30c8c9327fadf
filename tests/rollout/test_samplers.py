"""What another engine loads as the policy's weights, and what is refused when that engine is missing."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from fspo.config import read
from fspo.model.forward import logprobs
from fspo.model.loading import Lora, Policy, load
from fspo.rollout.vllm_sampler import save_merged
from fspo.training.loop import train
from helpers.policies import ragged


@pytest.mark.parametrize("lora", [None, Lora(rank=4)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_merged_weights_are_the_policy(tmp_path: Path, lora: Lora | None, dtype: str) -> None:
    policy = load("tiny:2x64", lora=lora, dtype=dtype)
    with torch.no_grad():
        for p in policy.trainable():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    before = [p.clone() for p in policy.model.parameters()]
    save_merged(policy, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))
    policy.tokenizer.save_pretrained(tmp_path)
    again = load(str(tmp_path), dtype=dtype)
    assert not hasattr(again.model, "peft_config")
    assert {p.dtype for p in again.model.parameters()} == {getattr(torch, dtype)}
    gap = (values(again) - values(policy)).abs().max()
    assert gap < (1e-5 if dtype == "float32" else 0.25)
    assert lora is None or (values(load("tiny:2x64", dtype=dtype)) - values(policy)).abs().max() > 0.5


def values(policy: Policy) -> torch.Tensor:
    with torch.no_grad():
        return logprobs(policy, ragged(0)).logprobs.float()


def test_a_missing_vllm_is_reported_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"vllm is not installed: pip install 'fspo\[vllm\]'"):
        train(read(None, ["rollout.engine=vllm"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()
