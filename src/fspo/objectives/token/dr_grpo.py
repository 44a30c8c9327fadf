"""Dr. GRPO (arXiv 2503.20783): no length in the denominator.

    J = mean_i sum_t min( r A , clip(r, 1 - 0.2, 1 + 0.2) A ) / max_length

r token ratio, A advantage. Goes with the `dr_grpo` advantage, which does not divide by the group's standard deviation.
"""

from __future__ import annotations

from pydantic import Field

from fspo.objectives.batch import Batch
from fspo.objectives.token.token_clip import TokenClip
from fspo.tensors import Tensor


class DrGRPO(TokenClip):
    """DrGRPO with its published defaults."""

    name = "dr_grpo"
    label = "Dr. GRPO"
    summary = "token ratio clipped to 1 ± 0.2, token sum over a constant"
    aggregation = "sequence_mean_of_sums"

    max_length: int = Field(1024, ge=1, description="the constant: the completion limit of the run")

    def _row_scale(self, batch: Batch) -> Tensor | float:
        return 1 / (batch.totals.sequences * self.max_length)
