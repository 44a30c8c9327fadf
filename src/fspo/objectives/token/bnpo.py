"""BNPO as TRL has it: GRPO's surrogate, averaged over the tokens of the batch.

    J = sum_{i,t} min( r A , clip(r, 1 - 0.2, 1 + 0.2) A ) / tokens

r token ratio, A advantage. TRL divides by the tokens of each micro-batch, so there the loss depends on how a batch
is split; here the totals of the whole batch divide, and one micro-batch gives TRL's number.
"""

from __future__ import annotations

from typing import ClassVar

from fspo.objectives.objective import Aggregation
from fspo.objectives.token.token_clip import TokenClip


class BNPO(TokenClip):
    """BNPO with its published defaults."""

    name: ClassVar[str] = "bnpo"
    summary: ClassVar[str] = "token ratio clipped to 1 ± 0.2, mean over the tokens of the whole batch"
    aggregation: ClassVar[Aggregation] = "token_mean"
