"""Who samples: what is refused, and what another engine is given to load."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from policies import ragged

from fspo.local.config import read
from fspo.local.forward import logprobs
from fspo.local.loop import train
from fspo.local.models import Lora, Policy, load
from fspo.local.vllm_sampler import save_merged


@pytest.mark.parametrize("lora", [None, Lora(rank=4)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_merged_weights_are_the_policy(tmp_path: Path, lora: Lora | None, dtype: str) -> None:
    policy = load("tiny:2x64", lora=lora, dtype=dtype)
    with torch.no_grad():
        for p in policy.trainable():
            p += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()))
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


def test_vllm_that_is_not_installed_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"vllm is not installed: pip install 'fspo\[vllm\]'"):
        train(read(None, ["rollout.engine=vllm"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()
