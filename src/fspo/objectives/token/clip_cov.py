"""Clip-Cov (arXiv 2505.22617): PPO without the gradient of a few random tokens that would lower the entropy most.

    J = sum_{i,t} K min( r A , clip(r, 1 - clip_low, 1 + clip_high) A ) / tokens

    K = 0 for cov_share of the tokens, drawn from those with cov_low < C < cov_high that are not clipped;   else 1
    C = (A - mean A) (log pi - mean log pi),   means over the trained tokens

r token ratio, A advantage. At least one such token is left out if there is one. The tokens are drawn and the means
taken from the batch of a call, which is a micro-batch in a trainer that splits its batches, as in verl. The draw has a
generator of its own: the same batch gives the same loss.
"""

from __future__ import annotations

from pydantic import Field, model_validator

from fspo.objectives.batch import Batch, masked
from fspo.objectives.objective import Surrogate
from fspo.objectives.primitives import pessimistic
from fspo.objectives.token.token_clip import TokenClip
from fspo.tensors import Tensor, no_grad, torch


def covariance(batch: Batch) -> tuple[Tensor, Tensor]:
    """C of each trained token, in order, and the index of the token in the flat log-probs."""
    logprobs, A = batch.logprobs.detach().flatten(), batch.token_advantages
    if batch.mask is None:
        index = torch.arange(len(logprobs), device=logprobs.device)
    else:
        index = batch.mask.flatten().nonzero()[:, 0]
        A = A.flatten()[index if batch.by_token else index // batch.mask.shape[1]]
        logprobs = logprobs[index]
    logprobs = logprobs - logprobs.mean()
    return (A - A.mean()).mul_(logprobs), index


def marked(indices: Tensor, like: Tensor) -> Tensor:
    """Bool of the shape of `like`, on at these indices of its flat form."""
    marks = torch.zeros(like.numel(), dtype=torch.bool, device=like.device)
    marks[indices] = True
    return marks.view(like.shape)


class ClipCov(TokenClip):
    """PPO's clip, and no gradient for some tokens of high covariance."""

    name = "clip_cov"
    label = "Clip-Cov"
    summary = "token ratio clipped to 1 ± 0.2, 0.02 % of tokens of high covariance left out"
    aggregation = "token_mean"
    additive = False

    cov_share: float = Field(0.0002, gt=0, lt=1, description="share of the tokens that is left out")
    cov_low: float = Field(1.0, description="smallest covariance of such a token")
    cov_high: float = Field(5.0, description="largest covariance of such a token")
    seed: int = Field(0, description="of the draw")

    @model_validator(mode="after")
    def _ordered(self) -> ClipCov:
        if self.cov_low >= self.cov_high:
            raise ValueError(f"cov_low = {self.cov_low} must be below cov_high = {self.cov_high}")
        return self

    @no_grad
    def surrogate(self, batch: Batch) -> Surrogate:
        A, (cov, index) = batch.token_advantages, covariance(batch)
        count, chosen = len(cov), marked(index[(cov > self.cov_low) & (cov < self.cov_high)], batch.logprobs)
        del cov, index
        _, low, high, dual = self.band(batch.lengths, batch.totals)
        ratio, accepted, capped = pessimistic(batch.token_log_ratio, A, -low, high, self.exponent_cap, dual)
        capped = batch.share(capped)
        candidates = chosen.logical_and_(accepted).flatten().nonzero()[:, 0]
        draw = torch.randperm(len(candidates), generator=torch.Generator().manual_seed(self.seed))
        drawn = candidates[draw[: max(1, int(self.cov_share * count))].to(candidates.device)]
        chosen = marked(drawn, batch.logprobs)
        value, accepted = ratio.mul_(A).masked_fill_(chosen, 0), accepted.masked_fill_(chosen, False)
        return Surrogate(value, batch.share(accepted), capped, slope=masked(value, accepted))
