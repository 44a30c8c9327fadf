"""SAPO (arXiv 2511.20347): a soft sigmoid gate in place of the clip.

    J = mean_i mean_t (4 / tau) sigmoid( tau (r - 1) ) A,     tau = tau_pos where A > 0, else tau_neg

r token ratio, A advantage. The gate's slope is 1 at r = 1 and falls off smoothly either side, faster where A <= 0.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field

from fspo.objectives.base import Aggregation, Objective, Surrogate
from fspo.objectives.batch import Batch
from fspo.objectives.primitives import capped_ratio


class SAPO(Objective):
    """Token ratio through a sigmoid gate."""

    name: ClassVar[str] = "sapo"
    summary: ClassVar[str] = "token ratio through a soft sigmoid gate, mean over tokens then over responses"
    aggregation: ClassVar[Aggregation] = "sequence_mean_of_means"

    tau_pos: float = Field(1.0, gt=0, description="steepness of the gate where A > 0")
    tau_neg: float = Field(1.05, gt=0, description="steepness of the gate where A <= 0")

    def surrogate(self, batch: Batch) -> Surrogate:
        A = batch.token_advantages
        tau = torch.where(A > 0, self.tau_pos, self.tau_neg).to(A.dtype)
        clip = capped_ratio(batch.token_log_ratio, self.exponent_cap)
        gate = torch.sigmoid(tau * (clip.ratio - 1))
        with torch.no_grad():
            accepted = batch.share(4 * gate * (1 - gate) * clip.accepted)
        return Surrogate(gate * (4 / tau * A), accepted, batch.share(clip.capped))
