"""vLLM as the sampler of TRL and verl: the whole distribution only, and the sqrt(L) rule for its mismatch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from trl import GRPOConfig
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights

import fspo
from fspo.config import read
from fspo.engines.translate import BAND, RULE
from fspo.engines.trl import FSPOConfig
from fspo.engines.verl.run import OPEN, overrides
from fspo.objectives import Mismatch
from helpers.batches import Inputs, random_batch
from helpers.trl_runs import settings
from helpers.verl_ranks import actor, call


def config(tmp_path: Path, **changed: Any) -> FSPOConfig:
    return FSPOConfig(**settings(tmp_path, per_device_train_batch_size=8, **changed))


# --- TRL -------------------------------------------------------------------------------------------------------------


def test_in_trl_the_rule_for_vllm_is_the_band_unless_it_is_changed(tmp_path: Path) -> None:
    made, other = config(tmp_path, use_vllm=True), config(tmp_path)
    assert (made.make_objective().mismatch, made.sampler_rule) == (Mismatch(**BAND), RULE)
    assert (other.make_objective().mismatch, other.sampler_rule) == (None, "")
    assert GRPOConfig.vllm_importance_sampling_mode == "sequence_mask"  # TRL's default is a range for whole answers
    given = config(tmp_path, use_vllm=True, objective_args={"mismatch": {"c": 0.2}})
    assert given.make_objective().mismatch == Mismatch(c=0.2)
    for off in ({"objective_args": {"mismatch": None}}, {"vllm_importance_sampling_correction": False}):
        assert config(tmp_path, use_vllm=True, **off).make_objective().mismatch is None


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"top_p": 0.95}, "top_p = 0.95"),
        ({"vllm_structured_outputs_regex": "a+"}, "vllm_structured_outputs_regex = 'a+'"),
        ({"generation_kwargs": {"typical_p": 0.9}}, "generation_kwargs.typical_p = 0.9"),
        ({"generation_kwargs": {"temperature": 0.5}}, "generation_kwargs.temperature = 0.5"),
    ],
)
def test_trl_samples_from_the_whole_distribution(changed: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(named)):
        config(tmp_path, **changed)
    config(tmp_path, top_p=1.0, top_k=0, generation_kwargs={"top_k": -1, "cache_implementation": "dynamic"})


# --- verl ------------------------------------------------------------------------------------------------------------

ROLLOUT = "actor_rollout_ref.rollout"
CORRECTION = "algorithm.rollout_correction"


def translated(tmp_path: Path, *more: str) -> dict[str, Any]:
    return overrides(read("recipe:gsm8k-24gb", list(more)), tmp_path)


def objective_of(given: dict[str, Any]) -> dict[str, Any]:
    objective: dict[str, Any] = given["++actor_rollout_ref.actor.policy_loss.objective"]
    return objective


def test_in_verl_the_rule_for_vllm_is_the_band_unless_it_is_changed(tmp_path: Path) -> None:
    given = translated(tmp_path)
    assert objective_of(given)["mismatch"] == BAND
    assert (given[f"{CORRECTION}.rollout_is"], given[f"{CORRECTION}.rollout_is_threshold"]) == ("sequence", OPEN)
    assert given[f"{ROLLOUT}.calculate_log_probs"] is True
    given = translated(tmp_path, "objective.mismatch={level: token, mode: truncate, high: 2.0}")
    assert given[f"{CORRECTION}.rollout_is"] == "token"
    assert objective_of(given)["mismatch"]["high"] == 2.0
    for off in ("objective.mismatch=null", f"engines.verl={{{CORRECTION}.rollout_is: token}}"):
        given = translated(tmp_path, off)
        assert "mismatch" not in objective_of(given)
        assert f"{CORRECTION}.rollout_is_threshold" not in given
    with pytest.raises(ValueError, match="are the same rule: give one of them"):
        translated(tmp_path, "objective.mismatch={c: 0.1}", f"engines.verl={{{CORRECTION}.rollout_is: token}}")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        (f"{ROLLOUT}.top_p", 0.9),
        (f"+{ROLLOUT}.repetition_penalty", 1.05),
        (f"+{ROLLOUT}.engine_kwargs.vllm.override_generation_config", {"min_p": 0.1}),
        (f"{ROLLOUT}.do_sample", False),
    ],
)
def test_verl_samples_from_the_whole_distribution(setting: str, value: Any, tmp_path: Path) -> None:
    named = re.escape(f"engines.verl.{setting.lstrip('+')}")
    with pytest.raises(ValueError, match=f"{named}.* is refused in training"):
        translated(tmp_path, f"engines.verl={{'{setting}': {value}}}")
    translated(tmp_path, f"engines.verl={{{ROLLOUT}.val_kwargs.top_p: 0.7, {ROLLOUT}.top_p: 1.0}}")  # validation may


@pytest.mark.parametrize("name", ["fspo", "grpo"])
@pytest.mark.parametrize(
    "rule",
    [{"c": 0.3}, {"mode": "truncate", "high": 1.2}, {"level": "token", "mode": "truncate", "low": 0.8, "high": 1.2}],
)
def test_verls_weights_become_the_objectives_rule(name: str, rule: dict[str, Any]) -> None:
    """verl's own code computes the weights, uncut; the loss and its gradient are those of the objective by itself."""
    for seed in range(10):
        batch: Inputs = random_batch(seed)
        level = Mismatch(**rule).level
        log_weights = batch.old_logprobs - batch.sampler_logprobs
        weights, _ = compute_rollout_correction_weights(log_weights, batch.mask.double(), level, OPEN)
        made = actor(name, {"mismatch": rule})
        rows = len(batch.mask)
        made.global_batch_info.update(dp_size=1, global_batch_size=rows, batch_num_tokens=int(batch.mask.sum()))
        ours, plain = (batch.logprobs.clone().requires_grad_() for _ in range(2))
        loss, _ = call(made, batch, ours, rollout_is_weights=weights)
        objective = fspo.objectives.get(name, mismatch=rule)
        expected = objective(
            plain, batch.old_logprobs, batch.advantages, batch.mask, sampler_logprobs=batch.sampler_logprobs
        ).loss
        assert float(loss) == pytest.approx(float(expected), rel=1e-9, abs=1e-12)
        loss.backward()
        expected.backward()
        torch.testing.assert_close(ours.grad, plain.grad)


def test_a_rule_without_verls_weights_says_what_to_set() -> None:
    with pytest.raises(ValueError, match=r"set algorithm\.rollout_correction\.rollout_is=sequence"):
        call(actor("fspo", {"mismatch": BAND}), random_batch(0))
