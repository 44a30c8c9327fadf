"""The TRL engine with answers sampled by vLLM in the same process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from datasets import Dataset

from fspo.engines.translate import BAND, RULE
from fspo.engines.trl import FSPOConfig, FSPOTrainer
from fspo.model import tiny
from fspo.objectives import Mismatch
from helpers.cpu_platform import keep_vllm_weights

pytest.importorskip("vllm")


def reward(completions: list[str], **rest: Any) -> list[float]:
    return [text.count("a") / 12 for text in completions]


def test_vllm_samples_and_its_mismatch_is_corrected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("CI", "1")  # no telemetry
    # TRL would take a port that is free now, and torch listen on it only later: with 0, torch takes and holds one.
    monkeypatch.setattr("trl.trainer.utils._find_free_port", lambda: 0)
    keep_vllm_weights()
    for part in tiny.build("2x64"):
        part.save_pretrained(tmp_path / "model")
    config = FSPOConfig(
        output_dir=str(tmp_path / "out"), use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none",
        num_generations=4, max_completion_length=12, learning_rate=1e-3, max_steps=4, num_iterations=2,
        per_device_train_batch_size=16, logging_steps=1, save_strategy="no", use_vllm=True,
        vllm_max_model_length=64, model_init_kwargs={"dtype": "float32"},
    )  # fmt: skip
    data = Dataset.from_dict({"prompt": [f"say a {i}:" for i in range(16)]})
    run = FSPOTrainer(str(tmp_path / "model"), reward, config, data)
    before = {name: p.detach().clone() for name, p in run.model.named_parameters()}
    run.train()
    assert all(not torch.equal(before[name], p) for name, p in run.model.named_parameters())

    inputs = run._buffered_inputs[0]
    mask = inputs["completion_mask"].bool()
    assert run.objective.mismatch == Mismatch(**BAND)
    weights, _ = run.objective.mismatch.weights(inputs["old_per_token_logps"], inputs["sampling_per_token_logps"], mask)
    assert "importance_sampling_ratio" not in inputs, "TRL's own correction is off"
    assert RULE in capfd.readouterr().out
    assert float((weights - 1).abs().mean()) < 0.1, "the engines must agree on what they sampled"
    last = run.state.log_history[-2]
    assert "fspo/mismatch_outside" in last
    assert last["fspo/on_policy"] == 0
    assert len(pl.read_parquet(tmp_path / "out" / "fspo" / "records")) == 4 * 16
