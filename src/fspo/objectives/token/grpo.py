"""GRPO (arXiv 2402.03300).

    J = mean_i mean_t min( r A , clip(r, 1 - 0.2, 1 + 0.2) A )

r token ratio, A advantage. Differs from PPO in the aggregation: every response counts the same, so a token of a
long response counts less.
"""

from __future__ import annotations

from typing import ClassVar

from fspo.objectives.objective import Aggregation
from fspo.objectives.token.token_clip import TokenClip


class GRPO(TokenClip):
    """GRPO with its published defaults."""

    name: ClassVar[str] = "grpo"
    label: ClassVar[str] = "GRPO"
    summary: ClassVar[str] = "token ratio clipped to 1 ± 0.2, mean over tokens then over responses"
    aggregation: ClassVar[Aggregation] = "sequence_mean_of_means"
