"""FSPOTrainer and its FSPOConfig: TRL's GRPOTrainer with an objective of this package as its loss.

Sampling, rewards, the reference model, PEFT, vLLM, the optimiser and the loop stay TRL's. An `UpdateTracker` computes
the loss of a micro-batch with the counts of the whole optimiser step over all processes, so that it does not depend on
accumulation steps or processes. TRL averages gradients over processes, so each part is multiplied by their number.
Settings of TRL that an objective has too are translated (`_translated`), those that none reads refused (`REPLACED`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOConfig, GRPOTrainer

from fspo import advantages, objectives
from fspo.engines.adapters import refuse_unsloth
from fspo.engines.translate import BAND, NEUTRAL, RULE, refuse_cut
from fspo.engines.trl.records import log, settings_of, trained, updates_of
from fspo.engines.updates import UpdateTracker
from fspo.files import replace_file
from fspo.objectives import Objective
from fspo.objectives.batch import masked
from fspo.runs.recorder import loggable
from fspo.runs.schema import UpdateState

REPLACED = (  # settings of TRL's own losses that no objective reads
    "loss_type", "importance_sampling_level", "epsilon", "epsilon_high", "delta", "sapo_temperature_pos",
    "sapo_temperature_neg", "vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg",
    "top_entropy_quantile", "off_policy_mask_threshold", "use_adaptive_entropy", "vllm_importance_sampling_mode",
    "vllm_importance_sampling_clip_max", "vllm_importance_sampling_clip_min",
)  # fmt: skip


@dataclass
class FSPOConfig(GRPOConfig):
    """GRPOConfig, with an objective of this package in place of TRL's loss_type and its settings."""

    _VALID_DICT_FIELDS = GRPOConfig._VALID_DICT_FIELDS + ["objective_args"]  # noqa: RUF005

    objective: str = field(
        default=objectives.DEFAULT,
        metadata={"help": "Name of the objective (`fspo methods` lists them) or module:Class."},
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
        for name in REPLACED:
            if getattr(self, name) != getattr(GRPOConfig, name):
                raise ValueError(
                    f"{name} = {getattr(self, name)!r} is a setting of TRL's own losses: leave it out, and give "
                    f"{self.objective}'s own range in objective_args (`fspo methods {self.objective}` lists it)"
                )
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
        """Start message about the default mismatch rule; empty if another rule is set."""
        mismatch = self.make_objective().mismatch
        return RULE if self.use_vllm and mismatch is not None and mismatch == objectives.Mismatch(**BAND) else ""

    def make_objective(self) -> objectives.Objective:
        """The objective, with the settings of TRL that it has too."""
        given: dict[str, Any] = dict(self.objective_args or {})  # type: ignore[arg-type]
        objective = objectives.get(self.objective, **(self._translated() | given))
        if self.beta and objective.kl is not None and objective.kl.coef != self.beta:
            raise ValueError(f"beta = {self.beta} and kl in objective_args are both KL penalties: give one of them")
        if self.entropy_coef and objective.entropy_coef != self.entropy_coef:
            raise ValueError(
                f"entropy_coef = {self.entropy_coef} and the one in objective_args differ: give one of them"
            )
        return objective

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
        return settings


# --- the trainer -----------------------------------------------------------------------------------------------------

STATE = "fspo.json"  # in a checkpoint's folder: what the tracker has learnt

# Inputs of models that read more than text.
MODALITIES = (
    "pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles",
    "image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids",
)  # fmt: skip


class FSPOTrainer(GRPOTrainer):
    """GRPOTrainer whose loss is an objective of this package, with fairness metrics and a run folder."""

    _tag_names = ["trl", "fspo"]  # noqa: RUF012 (as in TRL)
    _name = "FSPO"
    _paper = {  # noqa: RUF012
        "title": "Clip Your Sequences Fairly: Enforcing Length Fairness for Sequence-Level RL",
        "id": "2509.09177",
    }

    args: FSPOConfig
    model: Any
    _buffered_inputs: Any
    _logs: dict[str, Any]
    objective: Objective

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        refuse_unsloth(type(self))
        super().__init__(*args, **kwargs)
        config = self.args
        if not isinstance(config, FSPOConfig):
            raise ValueError(f"args is a {type(config).__name__}: FSPOTrainer needs an FSPOConfig")
        self.objective = config.make_objective()
        if self.objective.mismatch is not None and not config.use_vllm and self.rollout_func is None:
            raise ValueError("mismatch needs the sampler's log-probs: set use_vllm, or leave it out of objective_args")
        self.vllm_importance_sampling_correction = False  # ours replaces TRL's, whose range is the same for all lengths
        folder = config.records or f"{config.output_dir}/fspo"
        self.tracker = UpdateTracker(self.objective, updates_of(config), None if folder == "none" else folder)
        self.describe_run = True  # write config.yaml and run.json when training begins
        self._scores: tuple[Tensor, list[bool]] | None = None  # rewards of all processes, truncated of this one
        self._rollout: dict[str, Any] = {}  # metrics of the answers of the last rollout
        self.scoring: dict[str, Any] = {}  # metrics that a reward function adds to them
        self._window = config.gradient_accumulation_steps
        self._tokens = 0.0  # trained tokens of the optimiser step, over all processes
        self._entropy = torch.zeros(2, device=self.accelerator.device)  # sum and count of tokens in the optimiser step

    def train(self, *args: Any, **kwargs: Any) -> Any:
        self.tracker.warns = self.describe_run  # a script has no display of ours
        if self.describe_run and self.args.sampler_rule:
            self.accelerator.print(self.args.sampler_rule)
        if self.describe_run and self.tracker.writer is not None:
            given = self.objective.model_dump(mode="json", exclude_unset=True)
            objective = {"objective": {"name": self.args.objective, **given}}
            self.tracker.writer.describe(objective | settings_of(self), engine="trl")
        result = super().train(*args, **kwargs)
        self.tracker.flush()
        return result

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        scores: Tensor = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        rewards = (scores * self.reward_weights.to(scores.device)).nansum(dim=1)
        rewards[scores.isnan().all(dim=1)] = torch.nan
        ends = {*self.eos_token_ids, self._tokenizer.pad_token_id}
        self._scores = rewards, [ids[-1] not in ends for ids in completion_ids_list]
        return scores

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's, with the reward and group of each answer; `advantage`, where given, replaces TRL's."""
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        assert self._scores is not None
        rewards, truncated = self._scores
        training = self.model.training
        size: Any = self.num_generations if training else self.num_generations_eval
        groups = torch.arange(len(rewards), device=rewards.device) // size
        start = self.accelerator.process_index * len(inputs)
        mine = slice(start, start + len(inputs))
        if self.args.advantage is not None:
            lengths = self.accelerator.gather(trained(output).sum(-1)).clamp(min=1)
            ours = advantages.get(self.args.advantage)(rewards, groups, lengths=lengths)
            self._logs["advantages"].extend(ours.tolist())  # a queue of fixed length, so these replace TRL's
            output["advantages"] = ours[mine]
        output |= {
            "reward": rewards[mine],
            "truncated": torch.tensor(truncated, device=rewards.device),
            "index": groups[mine],
        }
        if training:
            logged, counts = self._metrics["train"], advantages.count(rewards, groups)
            self._rollout = {
                "reward": float(rewards.nanmean()), "length": logged["completions/mean_length"][-1],
                "truncated": logged["completions/clipped_ratio"][-1], "groups": counts.groups,
                "groups_without_variance": counts.without_variance, "groups_single": counts.single,
                "unscored": counts.unscored, **self.scoring,
            }  # fmt: skip
        return output

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        """TRL's; where an optimiser step begins, count its trained tokens over all processes."""
        inputs: dict[str, Any] = super()._prepare_inputs(generation_batch)
        if self.model.training and self._step % self._window == 0:
            indices = [(self._step + i) % len(self._buffered_inputs) for i in range(self._window)]
            tokens = torch.stack([trained(self._buffered_inputs[index]).sum() for index in indices]).sum()
            self._tokens = float(self.accelerator.reduce(tokens, reduction="sum"))
        return inputs

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        training, mask = self.model.training, trained(inputs)
        parts = [torch.cat([inputs[f"prompt_{kind}"], inputs[f"completion_{kind}"]], dim=1) for kind in ("ids", "mask")]
        logprobs, entropies, aux_loss = self._get_per_token_logps_and_entropies(
            model, *parts, mask.size(1), compute_entropy=True, compute_aux_loss=self.aux_loss_enabled,
            **{name: inputs.get(name) for name in MODALITIES},
        )  # fmt: skip
        # At the first update on a rollout the policy is the old policy; TRL's second forward would add rounding noise.
        old = inputs.get("old_per_token_logps") if training and self.tracker.update else None
        old = logprobs.detach() if old is None else old
        options = {
            "ref_logprobs": inputs.get("ref_per_token_logps"), "entropy": entropies,
            "sampler_logprobs": inputs.get("sampling_per_token_logps"),
        }  # fmt: skip
        # A completion that TRL masks entirely counts in the denominator only, as in TRL.
        sequences, tokens, rows = float(len(mask)), float(mask.sum()), {}
        if training:
            sequences, tokens = sequences * self.accelerator.num_processes * self._window, self._tokens
            rows = {name: inputs[name].tolist() for name in ("reward", "truncated", "index")}
        options = {name: value for name, value in options.items() if value is not None}
        out = self.tracker.loss(
            logprobs, old, inputs["advantages"], mask, sequences=sequences, tokens=tokens, columns=rows, **options
        )
        loss = out.loss * self.accelerator.num_processes if training else out.loss
        mode = "train" if training else "eval"
        if self.aux_loss_enabled:
            loss = loss + self.router_aux_loss_coef * aux_loss / (
                self.args.gradient_accumulation_steps if training else 1
            )
            self._metrics[mode]["aux_loss"].append(self.accelerator.gather_for_metrics(aux_loss).mean().item())
        sums = torch.stack([masked(entropies.detach(), mask).sum(), mask.sum()]).to(self._entropy)
        if training:
            self._entropy += sums
        else:
            self._log_entropy(mode, sums)
        return loss

    def _log_entropy(self, mode: str, sums: Tensor) -> float:
        """Log the mean entropy per token from its sum and the number of tokens of this process."""
        total, count = self.accelerator.reduce(sums, reduction="sum").tolist()
        entropy = float(total / max(count, 1))
        self._metrics[mode]["entropy"].append(entropy)
        return entropy

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)  # type: ignore[no-untyped-call]
        if self._step % self._window == 0:  # the optimiser step ends, on every process
            entropy = self._log_entropy("train", self._entropy)
            self._entropy = torch.zeros_like(self._entropy)
            log(self, loggable(self.tracker.end_update(**self._rollout, entropy=entropy)))
        return loss

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)  # type: ignore[no-untyped-call]
        if self.args.should_save:
            folder = Path(self._get_output_dir(trial=trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            replace_file(folder / STATE, self.tracker.state().model_dump_json())

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[no-untyped-call]
        if checkpoint is not None:
            path = Path(checkpoint) / STATE
            if not path.is_file():
                raise ValueError(f"{checkpoint} has no {STATE}, FSPOTrainer did not write it: start from its model")
            self.tracker.restore(UpdateState.model_validate_json(path.read_bytes()))
