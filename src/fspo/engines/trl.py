"""TRL's GRPOTrainer with the objectives of this package.

    from fspo.engines.trl import FSPOConfig, FSPOTrainer

Sampling, rewards, the reference model, PEFT, vLLM, the optimiser and the loop stay TRL's. The loss of a micro-batch
goes through a `Ledger` with the counts of the whole optimiser step over all processes, so that neither accumulation
steps nor processes change it. TRL averages gradients over processes, so each part is multiplied by their number.
"""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOTrainer

from fspo import advantages
from fspo.engines.ledger import Ledger
from fspo.engines.trl_config import FSPOConfig
from fspo.objectives import Objective
from fspo.objectives.batch import masked

STATE = "fspo.json"  # in a checkpoint's folder: what the ledger has learnt

# What a forward of a model that reads more than text needs.
MODALITIES = (
    "pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles",
    "image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids",
)  # fmt: skip


class FSPOTrainer(GRPOTrainer):
    """GRPOTrainer whose loss is an objective of this package, with fairness metrics and records."""

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
        super().__init__(*args, **kwargs)
        config = self.args
        if not isinstance(config, FSPOConfig):
            raise ValueError(f"args is a {type(config).__name__}: FSPOTrainer needs an FSPOConfig")
        self.objective = config.make_objective()
        if self.objective.mismatch is not None and not config.use_vllm and self.rollout_func is None:
            raise ValueError("mismatch needs the sampler's log-probs: set use_vllm, or leave it out of objective_args")
        if config.updates == 1 and self.accelerator.is_main_process:
            warnings.warn(
                "one optimiser step a rollout: the ratio is 1 and clipping cannot act; raise num_iterations or "
                "steps_per_generation",
                stacklevel=2,
            )
        folder = config.records or f"{config.output_dir}/fspo"
        self.ledger = Ledger(self.objective, config.updates, None if folder == "none" else folder)
        self._scores: tuple[Tensor, list[bool]] | None = None  # rewards of all processes, truncated of this one
        self._rollout: dict[str, Any] = {}  # what is recorded of the last one
        self._window = config.gradient_accumulation_steps
        self._tokens = 0.0  # of the optimiser step, over all processes
        self._entropy = torch.zeros(2, device=self.accelerator.device)  # its sum and count in this optimiser step

    def train(self, *args: Any, **kwargs: Any) -> Any:
        objective = {"name": self.objective.name, **self.objective.model_dump(mode="json")}
        settings = json.loads(json.dumps(self.args.to_dict(), default=str))
        self.ledger.describe({"model": self.model.config._name_or_path, "objective": objective, "trl": settings})
        result = super().train(*args, **kwargs)
        self.ledger.flush()
        return result

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        found = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        rewards = (found * self.reward_weights.to(found.device)).nansum(dim=1)
        rewards[found.isnan().all(dim=1)] = torch.nan
        ends = {*self.eos_token_ids, self._tokenizer.pad_token_id}
        self._scores = rewards, [ids[-1] not in ends for ids in completion_ids_list]
        return found

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's, with each answer's reward and group; and an advantage of ours where one is wanted."""
        output = super()._generate_and_score_completions(inputs)
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
            self._logs["advantages"].extend(ours.tolist())  # as long as TRL's, which this pushes out
            output["advantages"] = ours[mine]
        output |= {
            "reward": rewards[mine],
            "truncated": torch.tensor(truncated, device=rewards.device),
            "index": groups[mine],
        }
        if training:
            said, counts = self._metrics["train"], advantages.count(rewards, groups)
            self._rollout = {
                "reward": float(rewards.nanmean()), "length": said["completions/mean_length"][-1],
                "truncated": said["completions/clipped_ratio"][-1], "groups": counts.groups,
                "groups_without_variance": counts.without_variance, "groups_single": counts.single,
                "unscored": counts.unscored,
            }  # fmt: skip
        return output

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        """TRL's; where an optimiser step begins, its trained tokens are counted over all processes."""
        inputs = super()._prepare_inputs(generation_batch)
        if self.model.training and self._step % self._window == 0:
            places = [(self._step + i) % len(self._buffered_inputs) for i in range(self._window)]
            tokens = torch.stack([trained(self._buffered_inputs[place]).sum() for place in places]).sum()
            self._tokens = float(self.accelerator.reduce(tokens, reduction="sum"))
        return inputs

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        training, mask = self.model.training, trained(inputs)
        parts = [torch.cat([inputs[f"prompt_{kind}"], inputs[f"completion_{kind}"]], dim=1) for kind in ("ids", "mask")]
        logprobs, entropies, aux_loss = self._get_per_token_logps_and_entropies(
            model, *parts, mask.size(1), compute_entropy=True, compute_aux_loss=self.aux_loss_enabled,
            **{name: inputs.get(name) for name in MODALITIES},
        )  # fmt: skip
        # The first update on a rollout is its own old policy; a second forward would add rounding noise to the ratio.
        old = inputs.get("old_per_token_logps") if training and self.ledger.update else None
        old = logprobs.detach() if old is None else old
        options = {
            "ref_logprobs": inputs.get("ref_per_token_logps"), "entropy": entropies,
            "sampler_logprobs": inputs.get("sampling_per_token_logps"),
        }  # fmt: skip
        # An answer that TRL masked whole counts in the denominator alone, as in TRL.
        sequences, tokens, rows = float(len(mask)), float(mask.sum()), {}
        if training:
            sequences, tokens = sequences * self.accelerator.num_processes * self._window, self._tokens
            rows = {name: inputs[name].tolist() for name in ("reward", "truncated", "index")}
        options = {name: value for name, value in options.items() if value is not None}
        out = self.ledger.loss(
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
        total, count = self.accelerator.reduce(sums, reduction="sum").tolist()
        self._metrics[mode]["entropy"].append(total / max(count, 1))
        return total / max(count, 1)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self._step % self._window == 0:
            self._close()
        return loss

    def _close(self) -> None:
        """End the optimiser step on every process, and log what it did."""
        entropy = self._log_entropy("train", self._entropy)
        self._entropy = torch.zeros_like(self._entropy)
        found = self.ledger.close(**self._rollout, entropy=entropy)
        bins = {f"clip_by_length/{k}": b["clip_rate"] for k, b in enumerate(found.pop("clip_by_length", []), 1)}
        if found.get("on_policy"):  # the ratio is 1: nothing could be clipped, and zeros would only dilute the averages
            found = {"on_policy": True}
        for name, value in (found | bins).items():
            if isinstance(value, bool | float) and math.isfinite(value):
                self._metrics["train"][f"fspo/{name}"].append(float(value))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            folder = Path(self._get_output_dir(trial=trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            (folder / STATE).write_text(json.dumps(self.ledger.state_dict()))

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            path = Path(checkpoint) / STATE
            if not path.is_file():
                raise ValueError(f"{checkpoint} has no {STATE}, so FSPOTrainer did not write it: start from its model")
            self.ledger.load_state_dict(json.loads(path.read_text()))


def trained(inputs: dict[str, Any]) -> Tensor:
    """(B, T) bool: the tokens of the completions that are trained on."""
    mask: Tensor = inputs["completion_mask"].bool()
    return mask & inputs["tool_mask"].bool() if "tool_mask" in inputs else mask
