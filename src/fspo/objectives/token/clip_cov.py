"""Clip-Cov (arXiv 2505.22617): PPO without the gradient of a few random tokens that would lower the entropy most.

    J = sum_{i,t} K min( r A , clip(r, 1 - clip_low, 1 + clip_high) A ) / tokens

    K = 0 for cov_share of the tokens, drawn from those with cov_low < C < cov_high that are not clipped;   else 1
    C = (A - mean A) (log pi - mean log pi),   means over the trained tokens

r token ratio, A advantage. At least one such token is left out if there is one. The tokens are drawn and the means
taken from the batch of a call, which is a micro-batch in a trainer that splits its batches, as in verl. The draw has a
generator of its own: the same batch gives the same loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, model_validator

from fspo.objectives.batch import Batch, masked
from fspo.objectives.objective import Aggregation, Surrogate
from fspo.objectives.primitives import pessimistic
from fspo.objectives.token.token_clip import TokenClip
from fspo.tensors import no_grad, torch

if TYPE_CHECKING:
    from torch import Tensor


def covariance(batch: Batch) -> Tensor:
    """C of each trained token, in order."""
    A, logprobs = batch.token_advantages.expand_as(batch.logprobs), batch.logprobs.detach()
    if batch.mask is not None:
        A, logprobs = A[batch.mask], logprobs[batch.mask]
    return (A - A.mean()) * (logprobs - logprobs.mean())


def placed(indices: Tensor, batch: Batch) -> Tensor:
    """Bool of the shape of the log-probs: the trained tokens of these numbers."""
    trained = torch.ones_like(batch.logprobs, dtype=torch.bool) if batch.mask is None else batch.mask
    chosen = torch.zeros(int(trained.sum()), dtype=torch.bool, device=trained.device)
    chosen[indices] = True
    return torch.zeros_like(trained).masked_scatter(trained, chosen)


class ClipCov(TokenClip):
    """PPO's clip, and no gradient for some tokens of high covariance."""

    name: ClassVar[str] = "clip_cov"
    label: ClassVar[str] = "Clip-Cov"
    summary: ClassVar[str] = "token ratio clipped to 1 ± 0.2, 0.02 % of tokens of high covariance left out"
    aggregation: ClassVar[Aggregation] = "token_mean"
    additive: ClassVar[bool] = False

    cov_share: float = Field(0.0002, gt=0, lt=1, description="share of the tokens that is left out")
    cov_low: float = Field(1.0, description="smallest covariance of such a token")
    cov_high: float = Field(5.0, description="largest covariance of such a token")
    seed: int = Field(0, description="of the draw")

    @model_validator(mode="after")
    def _ordered(self) -> ClipCov:
        if self.cov_low >= self.cov_high:
            raise ValueError(f"cov_low = {self.cov_low} must be below cov_high = {self.cov_high}")
        return self

    @property
    def needs_all_rows(self) -> bool:
        return True

    @no_grad
    def surrogate(self, batch: Batch) -> Surrogate:
        A = batch.token_advantages
        _, low, high, dual = self.band(batch.lengths, batch.totals)
        clip = pessimistic(batch.token_log_ratio, A, -low, high, self.exponent_cap, dual)
        cov = covariance(batch)
        passed = clip.accepted if batch.mask is None else clip.accepted[batch.mask]
        candidates = ((cov > self.cov_low) & (cov < self.cov_high) & passed).nonzero()[:, 0]
        draw = torch.randperm(len(candidates), generator=torch.Generator().manual_seed(self.seed))
        drawn = draw[: max(1, int(self.cov_share * len(cov)))].to(candidates.device)
        kept = ~placed(candidates[drawn], batch)
        value, accepted = masked(clip.ratio * A, kept), clip.accepted & kept
        return Surrogate(value, batch.share(accepted), batch.share(clip.capped), slope=masked(value, accepted))
