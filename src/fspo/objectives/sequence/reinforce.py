"""REINFORCE (Williams 1992): no importance ratio, nothing to clip.

    J = mean_i A sum_t log pi

A advantage. Unbiased only while the answers come from the current policy.
"""

from __future__ import annotations

from typing import ClassVar

from fspo.objectives.batch import Batch
from fspo.objectives.objective import Aggregation, Objective, Surrogate
from fspo.tensors import no_grad, torch


class REINFORCE(Objective):
    """Advantage times log-probability."""

    name = "reinforce"
    label = "REINFORCE"
    summary = "advantage times log-prob, no ratio and no clip: for on-policy data"
    aggregation: ClassVar[Aggregation] = "sequence_mean_of_sums"
    clips = False

    @no_grad
    def surrogate(self, batch: Batch) -> Surrogate:
        A, ones = batch.token_advantages, torch.ones_like(batch.lengths)
        return Surrogate(A * batch.logprobs, ones, 0 * ones, slope=A.clone())
