"""GRPO (arXiv 2402.03300).

    J = mean_i mean_t min( r A , clip(r, 1 - 0.2, 1 + 0.2) A )

r token ratio, A advantage. Differs from PPO in the aggregation: every response counts the same, so a token of a
long response counts less.
"""

from fspo.objectives.token.token_clip import TokenClip


class GRPO(TokenClip):
    """GRPO with its published defaults."""

    name = "grpo"
    label = "GRPO"
    summary = "token ratio clipped to 1 ± 0.2, mean over tokens then over responses"
    aggregation = "sequence_mean_of_means"
