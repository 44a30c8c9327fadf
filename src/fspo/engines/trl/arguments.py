"""The settings of `FSPOTrainer`: TRL's GRPOConfig, with an objective of this package in place of TRL's loss.

Settings of TRL that an objective has too are translated (`_translated`); settings that no objective reads are refused
(`REPLACED`), so that none is silently ignored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from trl import GRPOConfig

from fspo import advantages, objectives
from fspo.engines.sampler_rules import BAND, NEUTRAL, RULE, refuse_cut

_RANGE = "give the clip range in objective_args"
REPLACED = {  # settings of TRL's own losses that no objective reads, and what to use instead
    "loss_type": "give objective",
    "importance_sampling_level": "give objective='gspo' or another that weights sequences",
    "epsilon": _RANGE,
    "epsilon_high": _RANGE,
    "delta": "give dual_clip or dual in objective_args",
    "sapo_temperature_pos": "give tau_pos in objective_args",
    "sapo_temperature_neg": "give tau_neg in objective_args",
    **{f"vespo_{name}": f"give {name} in objective_args" for name in ("k_pos", "lambda_pos", "k_neg", "lambda_neg")},
    "top_entropy_quantile": "leave it out, every token is trained",
    "off_policy_mask_threshold": "leave it out, the objective does the clipping",
    "use_adaptive_entropy": "give a constant entropy_coef",
}
SAMPLER = [f"vllm_importance_sampling_{name}" for name in ("mode", "clip_max", "clip_min")]


@dataclass
class FSPOConfig(GRPOConfig):
    """GRPOConfig, with an objective of this package in place of TRL's loss_type and its settings."""

    _VALID_DICT_FIELDS = GRPOConfig._VALID_DICT_FIELDS + ["objective_args"]  # noqa: RUF005

    objective: str = field(
        default="fspo", metadata={"help": "Name of the objective (`fspo methods` lists them) or module:Class."}
    )
    objective_args: dict | str | None = field(  # type: ignore[type-arg]  # TRL's parser knows no parameters of dict
        default=None, metadata={"help": "Parameters of the objective."}
    )
    advantage: str | None = field(
        default=None, metadata={"help": "Name of an advantage of fspo; default: TRL's own, by scale_rewards."}
    )
    records: str | None = field(
        default=None, metadata={"help": "The run folder that is written; default OUTPUT_DIR/fspo, 'none' for none."}
    )

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[no-untyped-call]
        for name, fix in REPLACED.items():
            if getattr(self, name) != getattr(GRPOConfig, name):
                raise ValueError(f"{name} = {getattr(self, name)!r} is a setting of TRL's own losses: {fix}")
        self._check_sampling()
        assert self.steps_per_generation is not None  # TRL has filled it in
        every, window = self.steps_per_generation * self.num_iterations, self.gradient_accumulation_steps
        if every % window:
            raise ValueError(
                f"gradient_accumulation_steps = {window} must divide steps_per_generation * num_iterations = {every}: "
                "an optimiser step cannot mix two rollouts"
            )
        if self.advantage is not None:
            advantages.get(self.advantage)
            for name in ("scale_rewards", "multi_objective_aggregation"):
                if getattr(self, name) != getattr(GRPOConfig, name):
                    raise ValueError(f"{name} = {getattr(self, name)!r} does nothing with advantage: give one of them")
        objective = self.make_objective()
        if objective.kl is not None:
            self.beta = objective.kl.coef  # TRL takes log-probs of the reference where beta is not 0

    def _check_sampling(self) -> None:
        """Answers are drawn from the whole distribution, at the temperature at which log-probs are taken."""
        refuse_cut({name: getattr(self, name) for name in NEUTRAL if hasattr(self, name)})
        more: dict[str, Any] = dict(self.generation_kwargs or {})  # type: ignore[arg-type]
        refuse_cut(more, "generation_kwargs.")
        if more.get("temperature", self.temperature) != self.temperature:
            raise ValueError(
                f"generation_kwargs.temperature = {more['temperature']!r} is refused: log-probs are taken at "
                f"temperature = {self.temperature}; set that one"
            )

    @property
    def sampler_rule(self) -> str:
        """What a run says at its start about vLLM's mismatch; empty where the rule is not this package's default."""
        mismatch = self.make_objective().mismatch
        return RULE if self.use_vllm and mismatch is not None and mismatch == objectives.Mismatch(**BAND) else ""

    @property
    def updates(self) -> int:
        """Optimiser steps per rollout."""
        assert self.steps_per_generation is not None  # TRL has filled it in
        return self.steps_per_generation * self.num_iterations // self.gradient_accumulation_steps

    def make_objective(self) -> objectives.Objective:
        """The objective, with the settings of TRL that it has too."""
        given: dict[str, Any] = dict(self.objective_args or {})  # type: ignore[arg-type]
        settings = self._translated()
        objective = objectives.get(self.objective, **(settings | given))
        if self.beta and objective.kl is not None and objective.kl.coef != self.beta:
            raise ValueError(f"beta = {self.beta} and kl in objective_args are both KL penalties: give one of them")
        if self.entropy_coef and objective.entropy_coef != self.entropy_coef:
            raise ValueError(
                f"entropy_coef = {self.entropy_coef} and the one in objective_args differ: give one of them"
            )
        if "mismatch" in given and "mismatch" in settings and (changed := self.changed_correction):
            raise ValueError(f"{changed[0]} and mismatch in objective_args are the same rule: give one of them")
        return objective

    @property
    def changed_correction(self) -> list[str]:
        """The settings of TRL's own correction of vLLM's mismatch that were changed: its rule is used then."""
        return [name for name in SAMPLER if getattr(self, name) != getattr(GRPOConfig, name)]

    def _translated(self) -> dict[str, Any]:
        settings: dict[str, Any] = {}
        if self.beta:
            settings["kl"] = {"coef": self.beta, "importance": self.use_bias_correction_kl}
        if self.entropy_coef:
            settings["entropy_coef"] = self.entropy_coef
        if "max_length" in objectives.get_class(self.objective).model_fields:
            settings["max_length"] = self.max_completion_length
        if self.use_vllm and self.vllm_importance_sampling_correction:
            settings["mismatch"] = dict(BAND)
        if "mismatch" in settings and self.changed_correction:
            level, mode = self.vllm_importance_sampling_mode.split("_")
            high = self.vllm_importance_sampling_clip_max
            low = self.vllm_importance_sampling_clip_min or 0.0
            settings["mismatch"] = {"level": level, "mode": mode, "low": low, "high": high or math.exp(20.0)}
        return settings
