"""DAPO (arXiv 2503.14476): the clip-higher range, and every token of the batch counts the same.

    J = sum_{i,t} min( r A , clip(r, 1 - 0.2, 1 + 0.28) A ) / tokens

r token ratio, A advantage. Dynamic sampling and overlong shaping belong to the data, not to this loss.
"""

from pydantic import Field

from fspo.objectives.token.token_clip import TokenClip


class DAPO(TokenClip):
    """DAPO with its published defaults."""

    name = "dapo"
    label = "DAPO"
    summary = "token ratio clipped to [0.8, 1.28], mean over tokens"
    aggregation = "token_mean"

    clip_high: float = Field(0.28, ge=0, description="the ratio is clipped above 1 + clip_high")
