"""FSPO with a band learnt online for a wanted clip rate, around a bounded drift. This project's extension.

FSPO's loss with the band of `adaptive_band.py`: no pilot runs to choose c, which is now a hard cap.
"""

from pydantic import Field

from fspo.objectives.sequence.fspo import FSPO
from fspo.objectives.sequence.length_family import Drift


class FSPOAdaptive(FSPO):
    """FSPO whose defaults learn the band."""

    name = "fspo_adaptive"
    label = "FSPO, adaptive"
    summary = "FSPO whose band is learnt online for a wanted clip rate, per staleness, under a hard cap"

    clip_rate: float | None = Field(0.1, gt=0, lt=1, description="wanted share outside the band, both sides together")
    drift: Drift = Field("bounded", description="mu, as in fspo")
