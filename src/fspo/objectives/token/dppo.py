"""DPPO (arXiv 2602.04879): tokens are left out by how far their probability moved, not by its ratio.

    J = sum_{i,t} M sg( min(r, ratio_high) ) A log pi / tokens

    M = 0 where A > 0 and p > q and D > delta_high, or A < 0 and p < q and D > delta_low;   else 1

    D = | p - q |                                          divergence tv, of "the token or another"
    D = q log(q / p) + (1 - q) log((1 - q) / (1 - p))      divergence kl

p, q probability of the token under the current and the old policy, r = p / q, A advantage, sg stop-gradient. The ratio
of a rare token may be large while its probability hardly moves: such a token keeps its gradient here and loses it
under PPO. verl has this form as `dppo_tv` and `dppo_kl`; SkyRL and prime-rl maximise M r A, which has the same
gradient below `ratio_high`. The thresholds recommended are 0.2 for tv and 0.05 for kl.
"""

from __future__ import annotations

from typing import Literal, NoReturn

from pydantic import Field

from fspo.objectives.batch import Batch
from fspo.objectives.clipping import AtRate, Responses
from fspo.objectives.objective import Objective, Surrogate
from fspo.objectives.primitives import capped_ratio
from fspo.tensors import Tensor, no_grad, torch


class DPPO(Objective):
    """Log-probability weighted by a constant ratio, without tokens whose probability moved too far."""

    name = "dppo"
    label = "DPPO"
    summary = "token ratio, tokens whose probability moved by more than 0.2 left out, mean over tokens"
    aggregation = "token_mean"
    clip_fields = ("delta_low", "delta_high")
    needs_tokens = True

    divergence: Literal["tv", "kl"] = Field("tv", description="between the old and the new chance of the token")
    delta_low: float = Field(0.2, gt=0, description="largest divergence of a falling token where A < 0")
    delta_high: float = Field(0.2, gt=0, description="largest divergence of a rising token where A > 0")
    ratio_high: float = Field(20.0, gt=0, description="largest weight of a token")

    def survival(self, rows: Responses) -> NoReturn:
        raise ValueError("dppo looks at probabilities, and recorded responses have only their ratios")

    def at_clip_rate(self, rows: Responses, clip_rate: float) -> AtRate:
        return AtRate(note="needs probabilities, not only their ratios")

    @no_grad
    def surrogate(self, batch: Batch) -> Surrogate:
        A, l = batch.token_advantages, batch.token_log_ratio
        moved = self._divergence(batch)
        # Not `>`: a divergence that rounding makes NaN is too large.
        outside = (~(moved <= self.delta_high)).logical_and_(l > 0).logical_and_(A > 0)
        outside |= (~(moved <= self.delta_low)).logical_and_(l < 0).logical_and_(A < 0)
        del moved
        ratio, capped = capped_ratio(l, self.exponent_cap)
        capped = batch.share(capped)
        accepted = batch.share_(ratio.reciprocal().mul_(self.ratio_high).clamp_(max=1).masked_fill_(outside, 0))
        weight = ratio.clamp_(max=self.ratio_high).mul_(A).masked_fill_(outside, 0)
        return Surrogate(weight * batch.logprobs, accepted, capped, slope=weight)

    def _divergence(self, batch: Batch) -> Tensor:
        """D of each token."""
        old = batch.logprobs - batch.token_log_ratio
        if self.divergence == "tv":
            return old.exp_().sub_(batch.logprobs.exp()).abs_()
        p, q = batch.logprobs.exp(), old.exp_()
        others = torch.log((1 - q + 1e-8) / (1 - p + 1e-8)).mul_(1 - q)
        return others.sub_(q.mul_(batch.token_log_ratio))
