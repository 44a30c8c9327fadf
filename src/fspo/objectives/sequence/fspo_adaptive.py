"""FSPO with a band learnt online for a wanted clip rate, around a bounded drift. This project's extension.

FSPO's loss with the band of `adaptive_band.py`: no pilot runs to choose c, which is now a hard cap.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fspo.objectives.sequence.fspo import FSPO
from fspo.objectives.sequence.length_family import Drift


class FSPOAdaptive(FSPO):
    """FSPO whose defaults learn the band."""

    name: ClassVar[str] = "fspo_adaptive"
    label: ClassVar[str] = "FSPO, adaptive"
    summary: ClassVar[str] = "FSPO whose band is learnt online for a wanted clip rate, per staleness, under a hard cap"

    clip_rate: float | None = Field(0.1, gt=0, lt=1, description="wanted share outside the band, both sides together")
    drift: Drift = Field("bounded", description="mu, as in fspo")
