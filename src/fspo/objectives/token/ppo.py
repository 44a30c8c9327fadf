"""PPO (arXiv 1707.06347) without a critic, as verl's `vanilla` and TRL's `bnpo`: mean over all tokens of the batch.

    J = sum_{i,t} min( r A , clip(r, 1 - 0.2, 1 + 0.2) A ) / tokens

r token ratio, A advantage; sums over responses i and their tokens t. verl adds a dual clip of 3 by default: set
dual_clip=3.0 for that. TRL divides by the tokens of each micro-batch, so that its loss depends on how a batch is split;
here the totals of the whole batch divide. `bnpo` is another name of this objective.
"""

from fspo.objectives.token.token_clip import TokenClip


class PPO(TokenClip):
    """PPO with its published defaults."""

    name = "ppo"
    label = "PPO"
    summary = "token ratio clipped to 1 ± 0.2, mean over tokens"
    aggregation = "token_mean"
