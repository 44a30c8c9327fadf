"""VESPO as TRL has it: a soft kernel on the sequence weight, held constant.

    J = sum_{i,t} sg( phi(w) ) A log pi / tokens,     phi(w) = w^k exp( lambda (1 - w) ),   w = exp(S)

S sum of the token log-ratios of a response, A advantage, sg stop-gradient; k and lambda depend on the sign of A.
phi(1) = 1, and it falls off either side. TRL clamps each token's log-ratio to ± 20 and log w to [log 1e-8, 20].
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from pydantic import Field

from fspo.objectives.batch import Batch
from fspo.objectives.clipping import Array, Responses
from fspo.objectives.objective import Objective, Surrogate
from fspo.tensors import no_grad, torch

LOWEST = math.log(1e-8)


class VESPO(Objective):
    """Log-probability weighted by a gamma kernel of the sequence weight."""

    name = "vespo"
    label = "VESPO"
    summary = "log-prob times a soft gamma kernel of the sequence weight, mean over tokens"
    aggregation = "token_mean"
    clip_fields = ("k_pos", "lambda_pos", "k_neg", "lambda_neg")

    k_pos: float = Field(2.0, ge=0, description="power of w where A >= 0")
    lambda_pos: float = Field(3.0, ge=1e-4, description="decay in w where A >= 0")
    k_neg: float = Field(3.0, ge=0, description="power of w where A < 0")
    lambda_neg: float = Field(2.0, ge=1e-4, description="decay in w where A < 0")

    def scaled(self, k: float) -> VESPO:
        """The kernel's log-slopes are divided by k: the larger k, the flatter."""
        powers = {name: 1 + (getattr(self, name) - 1) / k for name in ("k_pos", "k_neg")}
        decays = {name: getattr(self, name) / k for name in ("lambda_pos", "lambda_neg")}
        return self.model_copy(update=powers | decays)

    def survival(self, rows: Responses) -> Callable[[float], Array]:
        log_w = np.clip(rows.log_ratio, LOWEST, self.exponent_cap)
        positive = rows.sign >= 0
        power = np.where(positive, self.k_pos, self.k_neg) - 1
        decay = np.where(positive, self.lambda_pos, self.lambda_neg)
        bend = np.maximum(decay * np.expm1(log_w) - power * log_w, 0)  # - log of the share that survives
        return lambda k: np.exp(-bend / k)

    @no_grad
    def surrogate(self, batch: Batch) -> Surrogate:
        A = batch.row_advantages
        cap = self.exponent_cap
        total = batch.row_sum(batch.token_log_ratio.clamp(-cap, cap), zeroed=True)
        log_w = total.clamp(LOWEST, cap)
        k = torch.where(A >= 0, self.k_pos, self.k_neg)
        decay = torch.where(A >= 0, self.lambda_pos, self.lambda_neg)
        log_phi = k * log_w + decay * (1 - log_w.exp())
        accepted = (log_phi - log_w).clamp(max=0).exp()
        slope = batch.spread(log_phi.exp() * A)
        return Surrogate(slope * batch.logprobs, accepted, total > cap, slope=slope)
