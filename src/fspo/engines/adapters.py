"""Objectives of this package in the loss hooks of other trainers; docs/adapters.md has the lines to add to each.

A hook sees a part of the batch and keeps nothing between calls, so that its objective must have a fixed band: one that
learns its band, takes its drift from the batch, or ranks the tokens of the batch is refused.

Most of these trainers divide the sum of what a hook returns by the trained tokens of the whole batch. That gives the
loss of the whole batch exactly for an objective that is a mean over tokens, as `fspo` is with its default scale. One
that is a mean over responses needs the number of responses per token: give `mean_length`.

Nothing here imports another trainer before its hook is called.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from fspo import objectives
from fspo.objectives import LogBand, Objective, Output, Totals
from fspo.tensors import torch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["NemoLoss", "PackedLoss", "SkyRLLoss", "TinkerLoss", "prime_rl_loss", "refuse_unsloth", "slime_loss"]

TRAINERS_OWN = {  # options of an objective that need a tensor, and the tensor
    "kl": "ref_logprobs",
    "entropy_coef": "entropy",
    "mismatch": "sampler_logprobs",
}


# --- what every hook does -------------------------------------------------------------------------------------------


def fixed(objective: str | Objective, gives: Sequence[str] = (), **parameters: Any) -> Objective:
    """The objective, refused if a stateless hook cannot compute it; `gives` are the further tensors the hook has."""
    if isinstance(objective, str):
        objective = objectives.get(objective, **parameters)
    name = objective.name
    if objective.learns:
        raise ValueError(f"{name} learns its band from update to update, and this hook keeps no state: set clip_rate "
                         "to null and drift to zero or a number, and give c_low and c_high")  # fmt: skip
    if objective.estimates:
        raise ValueError(f"{name} takes its drift from the whole batch, and this hook sees a part of it: give "
                         "drift='zero' or a number")  # fmt: skip
    if not objective.additive:
        raise ValueError(f"{name} ranks the tokens of the whole batch, and this hook sees a part of it: use another")
    for option, tensor in TRAINERS_OWN.items():
        if getattr(objective, option) and tensor not in gives:
            raise ValueError(f"{option} needs {tensor}, which this hook does not have: use the trainer's own setting")
    return objective


def per_token(objective: Objective, mean_length: float | None) -> Totals:
    """Totals for a trainer that adds up the losses of parts and divides by the tokens of the batch."""
    token_mean = objective.aggregation == "token_mean"
    if isinstance(objective, LogBand):
        token_mean = objective.reference_length == "mean" and objective.exponents.gain == objective.exponents.ratio
    if mean_length is None and not token_mean:
        raise ValueError(f"{objective.name} is a mean over responses, and this trainer divides by tokens: give "
                         "mean_length, the tokens of a typical response")  # fmt: skip
    if mean_length is not None and not (isinstance(mean_length, int | float) and 0 < mean_length < float("inf")):
        raise ValueError(f"mean_length = {mean_length!r} must be a positive number: the tokens of a typical response")
    return Totals(1 / (mean_length or 1.0), 1.0)


def loss_of(
    objective: Objective,
    logprobs: Sequence[Tensor],
    old_logprobs: Sequence[Tensor],
    advantages: Sequence[Tensor],
    masks: Sequence[Tensor],
    totals: Totals | None,
    **more: Any,
) -> Output:
    """The loss of responses that are given as rows of tokens, each with its mask; advantages are per token too."""
    kept = [mask > 0 for mask in masks]
    A = [row[mask] for row, mask in zip(advantages, kept, strict=True)]
    if all(bool((row == row[:1]).all()) for row in A):  # the tokens of a response share one, as most estimators give
        A = [row[:1].sum().reshape(1) for row in A]
    return objective(logprobs, old_logprobs, torch.cat(A), kept, totals=totals, **more)


def shown(out: Output) -> dict[str, float]:
    """What a hook reports."""
    return {f"fspo/{name}": out.metrics[name] for name in ("clip_rate", "mu", "capped") if name in out.metrics}


# --- prime-rl -------------------------------------------------------------------------------------------------------


class LossOutputs(NamedTuple):
    """The fields that prime-rl reads from its class of this name."""

    loss: Tensor
    metrics: dict[str, Tensor]


def prime_rl_loss(
    inputs: Any, objective: str = "fspo", mean_length: float | None = None, **parameters: Any
) -> LossOutputs:
    """prime-rl's custom loss: one sequence at a time (its LossInputs), the sum divided by the tokens of the batch."""
    chosen, totals = _prepared(objective, mean_length, json.dumps(parameters, sort_keys=True))
    weights, ref = inputs.loss_weights, inputs.ref_logprobs
    if weights is not None and bool((weights[inputs.loss_mask] == 1).all()):
        weights = None
    out = loss_of(
        chosen, [inputs.trainer_logprobs], [inputs.inference_logprobs], [inputs.advantages], [inputs.loss_mask], totals,
        ref_logprobs=None if ref is None else [ref], sampler_weights=None if weights is None else [weights],
    )  # fmt: skip
    return LossOutputs(out.loss, {name: out.loss.new_tensor(value) for name, value in shown(out).items()})


@functools.cache
def _prepared(name: str, mean_length: float | None, parameters: str) -> tuple[Objective, Totals]:
    objective = fixed(name, ("ref_logprobs",), **json.loads(parameters))
    return objective, per_token(objective, mean_length)


# --- SkyRL ----------------------------------------------------------------------------------------------------------


SKYRLS_OWN = (
    "tis_ratio_type", "sequence_mask_metric", "outlier_token_is_threshold_low", "outlier_token_is_threshold_high",
    "token_mask_is_threshold_low", "token_mask_is_threshold_high",
)  # fmt: skip


class SkyRLLoss:
    """A policy loss for SkyRL's `PolicyLossRegistry`; it can be pickled, as the registry sends it to its workers."""

    def __init__(self, objective: str = "fspo", mean_length: float | None = None, **parameters: Any) -> None:
        self.objective = fixed(objective, ("sampler_logprobs",), **parameters)
        self.totals = per_token(self.objective, mean_length)

    def __call__(
        self,
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        config: Any,
        loss_mask: Tensor | None = None,
        rollout_logprobs: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        """The sum over a micro-batch: SkyRL has divided the advantages by the tokens of the mini-batch already."""
        if config.loss_reduction != "token_mean":
            raise ValueError(
                f"loss_reduction = {config.loss_reduction!r} weights advantages by response, and {self.objective.name} "
                "has weights of its own: set token_mean"
            )
        for name in SKYRLS_OWN:
            if getattr(config.off_policy_correction, name, None) is not None:
                raise ValueError(f"off_policy_correction.{name} is for SkyRL's own losses: give mismatch instead")
        mask = torch.ones_like(log_probs) if loss_mask is None else loss_mask
        out = loss_of(
            self.objective, list(log_probs), list(old_log_probs), list(advantages), list(mask), self.totals,
            sampler_logprobs=None if rollout_logprobs is None else list(rollout_logprobs),
        )  # fmt: skip
        return out.loss, {"clip_ratio": out.metrics.get("clip_rate", 0.0), **shown(out)}


# --- Tinker ---------------------------------------------------------------------------------------------------------


class TinkerLoss:
    """A loss for Tinker's `forward_backward_custom`, which is given all data of an optimiser step at once."""

    def __init__(self, objective: str = "fspo", **parameters: Any) -> None:
        self.objective = fixed(objective, **parameters)

    def __call__(self, data: Sequence[Any], logprobs: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
        """A mean over the data. `mask` says which target tokens are trained, as in the cookbook's data."""
        if not data:
            raise ValueError("data is empty: give all sequences of the optimiser step")
        for key in (keys := ("mask", "logprobs", "advantages")):
            if any(key not in datum.loss_fn_inputs for datum in data):
                raise ValueError(f"a datum has no {key} in loss_fn_inputs: leave the cookbook's {', '.join(keys)} in")
        columns = [[datum.loss_fn_inputs[key].to_torch() for datum in data] for key in keys]
        out = loss_of(self.objective, logprobs, columns[1], columns[2], columns[0], None)
        return out.loss, shown(out)


# --- TRL's AsyncGRPOTrainer -----------------------------------------------------------------------------------------


class Kept:
    """A model that keeps the outputs of its last forward."""

    def __init__(self, model: Any) -> None:
        self.model, self.outputs = model, SimpleNamespace()  # none yet

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.outputs = self.model(*args, **kwargs)
        return self.outputs

    def tokens(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What TRL's packed loss is computed from, one value per trained token of all completions."""
        selected = inputs["token_index"] >= 0
        index = inputs["token_index"][selected]
        computed = {name: getattr(self.outputs, name).flatten()[index] for name in ("log_probs", "entropy")}
        return computed | {name: inputs[name][selected] for name in ("old_log_probs", "advantages", "segment_id")}


class PackedLoss:
    """A base class to put before TRL's `AsyncGRPOTrainer`; `objective` is the one of the trainer's class."""

    objective: Objective
    accelerator: Any
    _metrics: Any

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """TRL's forward pass and metrics, and this objective on its packed log-probs; scaled as TRL scales its own."""
        objective, kept = fixed(self.objective, ("entropy",)), Kept(model)
        theirs: Any = super()
        theirs.compute_loss(kept, inputs, return_outputs, num_items_in_batch)
        tokens = kept.tokens(inputs)
        lengths = torch.unique_consecutive(tokens["segment_id"], return_counts=True)[1].tolist()
        rows = {name: values.split(lengths) for name, values in tokens.items()}
        sequences = float(inputs["global_n_forward_tokens"][0] / inputs["mean_seq_len"][0])
        out = loss_of(
            objective, rows["log_probs"], rows["old_log_probs"], rows["advantages"],
            torch.ones_like(tokens["segment_id"]).split(lengths),
            Totals(round(sequences), float(inputs["global_n_tokens"][0])),
            entropy=rows["entropy"] if objective.entropy_coef else None,
        )  # fmt: skip
        trainer: Any = self
        loss: Tensor = out.loss * trainer.accelerator.num_processes
        if trainer.aux_loss_enabled:
            loss = loss + trainer.router_aux_loss_coef * kept.outputs.aux_loss
        metrics = self._metrics["train"]
        for name in [name for name in metrics if name.startswith("clip_ratio/")]:
            del metrics[name]  # of TRL's own range, which clips nothing here
        for name, value in shown(out).items():
            metrics[name].append(value)
        return loss.div(trainer.current_gradient_accumulation_steps)


def refuse_unsloth(trainer: type) -> None:
    """Unsloth generates a trainer whose `compute_loss` is its own loss and whose log-probs have no gradient."""
    if any(base.__name__.startswith(("Unsloth", "_Unsloth")) for base in getattr(trainer, "__mro__", ())):
        raise ValueError(
            "Unsloth has replaced the loss of TRL's trainer with its own, so that no objective would be used: "
            "train without unsloth"
        )


# --- NeMo-RL --------------------------------------------------------------------------------------------------------


class NemoLoss:
    """A NeMo-RL `LossFunction` in place of the one that its `setup` makes, which still gives the metrics."""

    def __init__(self, theirs: Any, objective: str = "fspo", **parameters: Any) -> None:
        self.objective = fixed(objective, ("sampler_logprobs", "ref_logprobs"), **parameters)
        own = () if self.objective.mismatch else ("use_importance_sampling_correction",)
        for name in (*own, "force_on_policy_ratio", "positive_example_nll_weight"):
            if getattr(theirs, name, None):
                raise ValueError(f"{name} is for NeMo-RL's own loss: leave it out; mismatch is for the sampler")
        if theirs.reference_policy_kl_penalty and self.objective.kl is None:
            raise ValueError("reference_policy_kl_penalty is a setting of NeMo-RL's own loss: give kl as well")
        self.theirs, self.input_type, self.loss_type = theirs, theirs.input_type, theirs.loss_type
        self.use_fused_linear_logprobs = getattr(theirs, "use_fused_linear_logprobs", False)
        self.reference_policy_kl_penalty = theirs.reference_policy_kl_penalty

    def __call__(
        self, next_token_logprobs: Tensor, data: Mapping[str, Any], global_valid_seqs: Tensor, global_valid_toks: Tensor
    ) -> tuple[Tensor, dict[str, Any]]:
        """The part of a micro-batch, or of one sequence of a packed one, in the loss of the global batch."""
        with torch.no_grad():
            _, metrics = self.theirs(next_token_logprobs.detach(), data, global_valid_seqs, global_valid_toks)
        masks = data["token_mask"][:, 1:] * data["sample_mask"].unsqueeze(-1)
        totals = Totals(float(global_valid_seqs), float(global_valid_toks))
        if totals.tokens < float((masks > 0).sum()):
            raise ValueError("this trainer counts the tokens of a batch after its loss: use NeMo-RL's grpo_train")

        def rows(name: str) -> list[Tensor]:
            return list(data[name][:, 1:])

        out = loss_of(
            self.objective, list(next_token_logprobs), rows("prev_logprobs"), rows("advantages"), list(masks), totals,
            sampler_logprobs=rows("generation_logprobs") if self.objective.mismatch else None,
            ref_logprobs=rows("reference_policy_logprobs") if self.objective.kl else None,
        )  # fmt: skip
        metrics = {name: value for name, value in metrics.items() if "clamped" not in name}  # of their own range
        part = float((out.lengths > 0).sum()) / totals.sequences  # NeMo-RL adds the metrics of micro-batches up
        return out.loss, metrics | {"loss": float(out.loss.detach()), **{k: v * part for k, v in shown(out).items()}}


# --- slime ----------------------------------------------------------------------------------------------------------


def slime_loss(args: Any, batch: Mapping[str, Any], logits: Tensor, _: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """slime's custom loss: a sum over a micro-batch, which Megatron divides by the tokens of the whole batch.

    `args.fspo`, from the file of --custom-config-path, has the parameters of the objective and its `name`.
    """
    from megatron.core import mpu
    from slime.backends.megatron_utils import loss as theirs

    if not args.calculate_per_token_loss or mpu.get_context_parallel_world_size() > 1:
        raise ValueError("this loss needs --calculate-per-token-loss, and responses that no context parallelism splits")
    parameters = dict(getattr(args, "fspo", {}))
    name, mean_length = parameters.pop("name", "fspo"), parameters.pop("mean_length", None)
    objective = fixed(name, ("ref_logprobs", "sampler_logprobs"), **parameters)
    for setting in ("use_kl_loss", "use_tis", "use_opsm", "entropy_coef"):
        if getattr(args, setting, False) and not (setting == "use_kl_loss" and objective.kl):  # loads the reference
            raise ValueError(f"{setting} is a setting of slime's own loss: leave it out, fspo has kl and mismatch")
    _, tokens = theirs.get_log_probs_and_entropy(
        logits, args=args, unconcat_tokens=batch["unconcat_tokens"], total_lengths=batch["total_lengths"],
        response_lengths=batch["response_lengths"], **theirs.get_rollout_top_p_logprob_kwargs(args, batch),
    )  # fmt: skip
    logprobs = tokens["log_probs"]
    old = batch["rollout_log_probs"] if args.use_rollout_logprobs else batch.get("log_probs")
    out = loss_of(
        objective, logprobs, old or [row.detach() for row in logprobs], batch["advantages"], batch["loss_masks"],
        per_token(objective, mean_length),
        ref_logprobs=batch.get("ref_log_probs") if objective.kl else None,
        sampler_logprobs=batch.get("rollout_log_probs") if objective.mismatch else None,
    )  # fmt: skip
    clipped = ((1 - out.accepted) * out.lengths).sum()
    return out.loss, {"loss": out.loss.detach(), "fspo/clip_rate": clipped}
