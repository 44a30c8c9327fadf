"""TRL's own trainers with a run folder: GRPOTrainer, RLOOTrainer, AsyncGRPOTrainer and their subclasses.

The loss is the trainer's: its inputs are kept and recorded after it, so that training is the same to the bit. TRL's
settings say what its loss clips (`rule_of`). docs/measure.md shows the use.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, TypeVar

from fspo import objectives
from fspo.engines.adapters import Kept, refuse_unsloth
from fspo.objectives import Objective
from fspo.runs.recorder import Recorder
from fspo.tensors import torch

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

TRAINERS = ("GRPOTrainer", "RLOOTrainer", "AsyncGRPOTrainer")
KNOWN = {"reward": "reward", "length": "completions/mean_length", "truncated": "completions/clipped_ratio"}
"""Metrics of the answers, and their names in TRL."""


def recorded(trainer: type[T], folder: str | None = None, rule: str | Objective | None = None) -> type[T]:
    """The class of a TRL trainer, with what its loss clips written to `folder`, by default OUTPUT_DIR/fspo.

    `rule` is the objective whose range the loss clips with; for TRL's own losses it is known from their settings.
    """
    refuse_unsloth(trainer)
    bases = {base.__name__ for base in getattr(trainer, "__mro__", ())}
    if not bases & set(TRAINERS) or bases & {"FSPOTrainer", "_Recorded"}:
        raise ValueError(f"recorded takes {', '.join(TRAINERS)} or a subclass without records, not {trainer}")
    mixin = _Padded if hasattr(trainer, "_compute_loss") else _Packed
    return type(trainer.__name__, (mixin, trainer), {"records": folder, "rule": rule, "loss_of": trainer})


class _Recorded:
    records: str | None
    rule: str | Objective | None
    loss_of: type
    recorder: Recorder | None = None

    def train(self, *args: Any, **kwargs: Any) -> Any:
        theirs: Any = super()
        result = theirs.train(*args, **kwargs)
        if self.recorder is not None:
            self.recorder.flush()  # of a rollout that was not finished
        return result

    def record(self, *tensors: Any, **more: Any) -> None:
        """Record a micro-batch, and log the metrics of the optimiser step that it ends."""
        trainer: Any = self
        if self.recorder is None:
            updates = updates_of(trainer.args)
            self.recorder = Recorder(
                self.records or f"{trainer.args.output_dir}/fspo", rule=self.rule or rule_of(trainer, self.loss_of),
                updates=updates, start=trainer.state.global_step // updates,
            )  # fmt: skip
            self.recorder.describe(settings_of(trainer), engine="trl")
        logged = trainer._metrics["train"]
        known = {name: logged[theirs][-1] for name, theirs in KNOWN.items() if logged.get(theirs)}
        more |= known | {"last": trainer.accelerator.sync_gradients}
        log(trainer, self.recorder.record(*tensors, **more))


class _Padded(_Recorded):
    """GRPOTrainer, RLOOTrainer."""

    _logprobs: Tensor

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        theirs: Any = super()
        result = theirs._get_per_token_logps_and_entropies(*args, **kwargs)
        self._logprobs = result[0].detach()
        return result

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        theirs: Any = super()
        loss: Tensor = theirs._compute_loss(model, inputs)
        new, mask = self._logprobs, trained(inputs)
        del self._logprobs
        if torch.is_grad_enabled():
            old = inputs.get("old_per_token_logps")
            if old is None:
                old = new
            if "old_logps" in inputs:  # RLOO keeps the sums alone: their difference is spread over the tokens
                S = torch.where(mask, new, 0.0).sum(-1) - inputs["old_logps"]
                old = new - (S / mask.sum(-1).clamp(min=1)).unsqueeze(-1)
            self.record(new, old, inputs["advantages"], mask, sampler_logprobs=inputs.get("sampling_per_token_logps"))
        return loss


class _Packed(_Recorded):
    """AsyncGRPOTrainer, whose old policy is the sampler."""

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        theirs: Any = super()
        kept = Kept(model)
        loss: Tensor = theirs.compute_loss(kept, inputs, *args, **kwargs)
        tokens = kept.tokens(inputs)
        self.record(
            tokens["log_probs"], tokens["old_log_probs"], tokens["advantages"], segment_ids=tokens["segment_id"]
        )
        return loss


# --- what a trainer's settings say ------------------------------------------------------------------------------------


def rule_of(trainer: Any, loss_of: type) -> Objective | None:
    """The objective whose range the trainer's loss clips with; None for a loss that is not TRL's."""
    home = next(base for base in loss_of.__mro__ if {"_compute_loss", "compute_loss"} & vars(base).keys())
    clip = {"clip_low": trainer.epsilon_low, "clip_high": trainer.epsilon_high}
    if home.__name__ == "RLOOTrainer":
        return objectives.get("rloo", **clip)
    if home.__name__ == "AsyncGRPOTrainer":
        return objectives.get("ppo", **clip)
    if home.__name__ != "GRPOTrainer" or not home.__module__.startswith("trl."):
        return None
    args, kind = trainer.args, trainer.loss_type
    whole = trainer.importance_sampling_level == "sequence"
    own = {"mismatch": correction(args)} if args.use_vllm and args.vllm_importance_sampling_correction else {}
    if kind == "vespo":
        names = ("k_pos", "lambda_pos", "k_neg", "lambda_neg")
        return objectives.get("vespo", **{name: getattr(args, f"vespo_{name}") for name in names}, **own)
    if whole:
        return objectives.get("gspo", **clip, **own) if args.delta is None and kind not in ("cispo", "sapo") else None
    if kind == "cispo":
        return objectives.get("cispo", ratio_high=trainer.epsilon_high, **own)
    if kind == "sapo":
        return objectives.get("sapo", tau_pos=args.sapo_temperature_pos, tau_neg=args.sapo_temperature_neg, **own)
    return objectives.get("ppo", **clip, dual_clip=args.delta, **own)


def correction(args: Any) -> dict[str, Any]:
    """TRL's own rule for vLLM's mismatch, as the option `mismatch` of an objective."""
    level, mode = args.vllm_importance_sampling_mode.split("_")
    low, high = args.vllm_importance_sampling_clip_min, args.vllm_importance_sampling_clip_max
    return {"level": level, "mode": mode, "low": low or 0.0, "high": high or math.exp(20.0)}


def updates_of(args: Any) -> int:
    """Optimiser steps per rollout; the asynchronous trainer makes one."""
    micro_batches = getattr(args, "steps_per_generation", None)
    return (
        1 if micro_batches is None else max(1, micro_batches * args.num_iterations // args.gradient_accumulation_steps)
    )


def settings_of(trainer: Any) -> dict[str, Any]:
    """The model and the settings, as a run folder's config.yaml has them."""
    settings = json.loads(json.dumps(trainer.args.to_dict(), default=str))
    return {"model": trainer.model.config._name_or_path, "trl": settings}


def log(trainer: Any, metrics: dict[str, float]) -> None:
    """Add the metrics of an optimiser step to TRL's log."""
    if metrics.get("on_policy"):  # the ratio is 1 and nothing can be clipped: zeros would only dilute the averages
        metrics = {"on_policy": 1.0}
    for name, value in metrics.items():
        trainer._metrics["train"][f"fspo/{name}"].append(value)


def trained(inputs: dict[str, Any]) -> Tensor:
    """(B, T) bool: the trained tokens of the completions."""
    mask: Tensor = inputs["completion_mask"].bool()
    return mask & inputs["tool_mask"].bool() if "tool_mask" in inputs else mask
