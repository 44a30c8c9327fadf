"""Options of every objective: a KL penalty to a reference policy, and importance weights for a sampler whose log-probs
differ from the trainer's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from fspo.objectives.batch import Batch, masked
from fspo.objectives.primitives import capped_ratio, low_variance_kl
from fspo.settings import Settings
from fspo.tensors import no_grad, torch

if TYPE_CHECKING:
    from torch import Tensor


class KLPenalty(Settings):
    """coef * KL(pi || reference), estimated per token: a mean over the tokens of the batch, or over
    each response first where the objective does so. A coefficient means the same under every objective.

    With d = log pi - log reference: k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d.
    Reference: J. Schulman, Approximating KL divergence (2020). Of the three, k2 alone has the KL's gradient on
    on-policy data; `importance` multiplies by the token ratio, which gives k3 the KL's gradient off-policy too
    (arXiv 2512.02556; TRL's default, not verl's).
    """

    coef: float = Field(gt=0, description="weight of the penalty")
    kind: Literal["k1", "k2", "k3"] = Field("k3", description="estimator of the divergence")
    importance: bool = Field(False, description="multiply by the token ratio")

    def per_token(self, batch: Batch, ref_logprobs: Tensor, cap: float) -> Tensor:
        """(B, T), 0 where masked out; exponents are capped at `cap`."""
        d = masked(batch.logprobs - ref_logprobs.detach(), batch.mask)
        kl = d if self.kind == "k1" else d.square() / 2 if self.kind == "k2" else low_variance_kl(-d, cap)
        return kl * capped_ratio(batch.token_log_ratio, cap)[0] if self.importance else kl


class Mismatch(Settings):
    """Importance weight of the trainer's old policy over the engine that sampled the answers.

    With d_t = log pi_old - log pi_sampler: exp(d_t) per token, or exp(sum d_t) per sequence. `truncate` clamps the
    weight into [low, high]; `mask` drops what lies outside. `c` takes the place of low and high: the log-weight
    of a sequence is held within drift L ± c sqrt(L), so that long answers are not cut more often than short ones.
    Weights are constants: no gradient passes through them.
    """

    level: Literal["token", "sequence"] = "sequence"
    mode: Literal["truncate", "mask"] = "mask"
    low: float = Field(0.0, ge=0, description="smallest weight allowed")
    high: float = Field(3.0, gt=0, description="largest weight allowed")
    c: float | None = Field(None, gt=0, description="half-width of the sqrt(L) band; replaces low and high")
    drift: float = Field(0.0, description="centre of the sqrt(L) band per token: minus the KL between the engines")

    @model_validator(mode="after")
    def _one_rule(self) -> Mismatch:
        if self.low >= self.high:
            raise ValueError(f"low = {self.low} must be below high = {self.high}")
        if self.c is not None and self.level == "token":
            raise ValueError("the sqrt(L) rule is about whole sequences: use level='sequence' with c")
        return self

    @no_grad
    def weights(self, old_logprobs: Tensor, sampler_logprobs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The weights, (B,) or (B, T), and which of them the rule changed.

        A token whose sampler log-prob is NaN (the engine gave none) counts as matching.
        """
        d = torch.nan_to_num(masked(old_logprobs - sampler_logprobs, mask), nan=0.0)
        low = d.new_tensor(math.log(self.low) if self.low else -math.inf)
        high = d.new_tensor(math.log(self.high))
        if self.level == "sequence":
            d = d.sum(-1)
            if self.c is not None:
                lengths = mask.sum(-1)
                low = self.drift * lengths - self.c * lengths.sqrt()
                high = self.drift * lengths + self.c * lengths.sqrt()
        outside = (d < low) | (d > high)
        weights = torch.exp(torch.clamp(d, low, high))
        return (weights if self.mode == "truncate" else weights.masked_fill(outside, 0.0)), outside
