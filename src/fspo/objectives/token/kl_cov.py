"""KL-Cov (arXiv 2505.22617): no clip, but a penalty on the few tokens that would lower the entropy most.

    J = sum_{i,t} ( r A - kl_coef |l| K ) / tokens

    K = 1 for the cov_share of the tokens with the largest C, at least one;   else 0
    C = (A - mean A) (log pi - mean log pi),   means over the trained tokens

r token ratio, l its logarithm, A advantage. Tokens are ranked in the batch of a call, which is a micro-batch in a
trainer that splits its batches, as in verl, whose default kl_coef is 0.1; the paper's is 1.
"""

from __future__ import annotations

import math

from pydantic import Field

from fspo.objectives.batch import Batch, masked
from fspo.objectives.objective import Objective, Surrogate
from fspo.objectives.primitives import pessimistic
from fspo.objectives.token.clip_cov import covariance, marked
from fspo.tensors import no_grad, torch


class KLCov(Objective):
    """Token ratio without a clip, with a penalty on tokens of high covariance."""

    name = "kl_cov"
    label = "KL-Cov"
    summary = "token ratio without a clip, a KL penalty on 0.02 % of tokens of the highest covariance"
    aggregation = "token_mean"
    additive = False
    clips = False

    cov_share: float = Field(0.0002, gt=0, lt=1, description="share of the tokens that has the penalty")
    kl_coef: float = Field(1.0, ge=0, description="weight of the penalty")

    @no_grad
    def surrogate(self, batch: Batch) -> Surrogate:
        A, l, (cov, index) = batch.token_advantages, batch.token_log_ratio, covariance(batch)
        largest = torch.topk(cov, min(len(cov), max(1, int(self.cov_share * len(cov))))).indices
        chosen = marked(index[largest], batch.logprobs)
        del cov, index
        clip = pessimistic(l, A, -math.inf, math.inf, self.exponent_cap)
        value = clip.ratio.mul_(A)
        slope = masked(value, clip.accepted)
        value[chosen] -= self.kl_coef * l[chosen].abs()
        slope[chosen] -= self.kl_coef * l[chosen].sign()
        return Surrogate(value, torch.ones_like(batch.lengths), batch.share(clip.capped), slope=slope)
