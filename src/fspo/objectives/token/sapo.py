"""SAPO (arXiv 2511.20347): a soft sigmoid gate in place of the clip.

    J = mean_i mean_t (4 / tau) sigmoid( tau (r - 1) ) A,     tau = tau_pos where A > 0, else tau_neg

r token ratio, A advantage. The gate's slope is 1 at r = 1 and falls off smoothly either side, faster where A <= 0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from pydantic import Field

from fspo.objectives.batch import Batch
from fspo.objectives.clipping import Array, Responses
from fspo.objectives.objective import Objective, Surrogate
from fspo.objectives.primitives import capped_ratio
from fspo.tensors import no_grad, torch


class SAPO(Objective):
    """Token ratio through a sigmoid gate."""

    name = "sapo"
    label = "SAPO"
    summary = "token ratio through a soft sigmoid gate, mean over tokens then over responses"
    aggregation = "sequence_mean_of_means"
    clip_fields = ("tau_pos", "tau_neg")
    needs_tokens = True

    tau_pos: float = Field(1.0, gt=0, description="steepness of the gate where A > 0")
    tau_neg: float = Field(1.05, gt=0, description="steepness of the gate where A <= 0")

    def scaled(self, k: float) -> SAPO:
        """The gate is k times as wide: its steepness is divided by k."""
        return self.model_copy(update={"tau_pos": self.tau_pos / k, "tau_neg": self.tau_neg / k})

    def survival(self, rows: Responses) -> Callable[[float], Array]:
        assert rows.tokens is not None
        off = np.expm1(np.minimum(rows.tokens, self.exponent_cap))
        off *= rows.per_token(np.where(rows.sign > 0, self.tau_pos, self.tau_neg))
        # 4 g (1 - g) of the gate g = sigmoid(x)
        return lambda k: rows.token_mean(1 / np.cosh(np.minimum(np.abs(off / k) / 2, 300)) ** 2)

    @no_grad
    def surrogate(self, batch: Batch) -> Surrogate:
        A = batch.advantages
        tau = torch.where(A > 0, self.tau_pos, self.tau_neg).to(A.dtype)
        ratio, capped = capped_ratio(batch.token_log_ratio, self.exponent_cap)
        gate = (ratio - 1).mul_(batch.to_tokens(tau)).sigmoid_()
        gate = batch.mask_(gate)
        # The gate's slope is 4 g (1 - g) times the ratio; sums and products in place, so that few tensors are held.
        square = torch.einsum("bt,bt->b", gate, gate) if batch.packing is None else gate * gate
        kept = batch.row_sum(gate, zeroed=True) - square if batch.packing is None else batch.row_sum(gate - square)
        accepted = (4 * kept / batch.lengths).clamp(0, 1)
        slope = ratio.mul_(gate)
        slope = slope.addcmul_(slope, gate, value=-1).mul_(batch.to_tokens(4 * A))
        return Surrogate(gate.mul_(batch.to_tokens(4 / tau * A)), accepted, batch.share(capped), slope=slope)
