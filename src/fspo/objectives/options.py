"""Options of every objective: a KL penalty to a reference policy, and importance weights for a sampler whose log-probs
differ from the trainer's."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from fspo.objectives.batch import Batch, masked
from fspo.objectives.packing import Packing
from fspo.objectives.primitives import capped_ratio, low_variance_kl
from fspo.settings import Settings
from fspo.tensors import Tensor, no_grad, torch


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
        """One per token, 0 where masked out; exponents are capped at `cap`."""
        d = batch.logprobs - ref_logprobs.detach()
        if batch.mask is not None:
            d = masked(d, batch.mask)
        kl = d if self.kind == "k1" else d.square() / 2 if self.kind == "k2" else low_variance_kl(-d, cap)
        return kl * capped_ratio(batch.token_log_ratio, cap)[0] if self.importance else kl


class Mismatch(Settings):
    """What is done about a sampler whose probabilities differ from those of the trainer's old policy.

    With d_t = log pi_old - log pi_sampler and D its sum over a response of L tokens:

    | level       | weight      |                                                                                |
    |-------------|-------------|--------------------------------------------------------------------------------|
    | `token`     | exp(d_t)    | `truncate` clamps it into [low, high], `mask` makes it 0 outside               |
    | `sequence`  | exp(D)      | the same; a fixed range on exp(D) drops long responses                         |
    | `geometric` | 1           | 0 where exp(D / L) is outside [low, high]; drops short responses               |
    | `c` given   | 1           | 0 where abs(D - drift L) > c sqrt(L): drops every length at the same rate. Ours |
    | `delta` given | 1         | 0 where A < 0 and the mean of log pi_sampler - log pi is above delta           |

    The last is the off-policy sequence mask of DeepSeek-V3.2 (arXiv 2512.02556), of the current policy pi.

    Inside the sqrt(L) band the weight is 1, because exp(D) would lose the long responses again: its variance grows
    with their length. Weights are constants: no gradient passes through them.
    """

    level: Literal["token", "sequence", "geometric"] = "sequence"
    mode: Literal["truncate", "mask"] = "mask"
    low: float = Field(0.0, ge=0, description="smallest weight allowed")
    high: float = Field(3.0, gt=0, description="largest weight allowed")
    c: float | None = Field(None, gt=0, description="half-width of the sqrt(L) band; replaces low and high")
    drift: float = Field(0.0, description="centre of the sqrt(L) band per token: minus the KL between the engines")
    delta: float | None = Field(None, gt=0, description="largest KL per token where A < 0; replaces low and high")

    @model_validator(mode="after")
    def _one_rule(self) -> Mismatch:
        if self.low >= self.high:
            raise ValueError(f"low = {self.low} must be below high = {self.high}")
        given = [name for name in ("c", "delta") if getattr(self, name) is not None]
        if len(given) == 2:
            raise ValueError("c and delta are two rules: give one of them")
        if given and self.level != "sequence":
            raise ValueError(f"the rule of {given[0]} is about whole sequences: use level='sequence' with it")
        if self.mode == "truncate" and (given or self.level == "geometric"):
            raise ValueError("this rule drops responses and has no weight to truncate: use mode='mask'")
        return self

    @no_grad
    def weights(
        self,
        old_logprobs: Tensor,
        sampler_logprobs: Tensor,
        mask: Tensor | None,
        packing: Packing | None = None,
        batch: Batch | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The weights, one per response or per token, and which of them the rule changed.

        A token whose sampler log-prob is NaN (the engine gave none) counts as matching. The rule of `delta` needs the
        current log-probs and the advantages of the `batch`.
        """
        if self.delta is not None:
            if batch is None:
                raise ValueError("the rule of delta looks at the current policy and the advantages: give batch")
            divergence = batch.share(torch.nan_to_num(sampler_logprobs - batch.logprobs, nan=0.0))
            A = batch.share(batch.advantages) if batch.by_token else batch.advantages
            outside = (A < 0) & (divergence > self.delta)
            return (~outside).to(divergence.dtype), outside
        d = torch.nan_to_num(old_logprobs - sampler_logprobs, nan=0.0)
        if packing is None:
            assert mask is not None
            d, lengths = masked(d, mask), mask.sum(-1)
        else:
            lengths = packing.counts
        lengths = lengths.clamp(min=1)
        low = d.new_tensor(math.log(self.low) if self.low else -math.inf)
        high = d.new_tensor(math.log(self.high))
        if self.level != "token":
            d = d.sum(-1) if packing is None else packing.sum(d)
        if self.level == "geometric":
            d = d / lengths
        if self.c is not None:
            low = self.drift * lengths - self.c * lengths.sqrt()
            high = self.drift * lengths + self.c * lengths.sqrt()
        outside = (d < low) | (d > high)
        if self.c is not None or self.level == "geometric":
            return (~outside).to(d.dtype), outside
        weights = torch.exp(torch.clamp(d, low, high))
        return (weights if self.mode == "truncate" else weights.masked_fill(outside, 0.0)), outside
