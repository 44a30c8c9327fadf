"""LUSPO (arXiv 2602.05261): GSPO with each response's loss multiplied by its length.

    J = mean_i L min( s A , clip(s, 1 - clip_low, 1 + clip_high) A ),     s = exp(S / L)

S sum of the token log-ratios of a response, L its trained tokens, A advantage. Undoes GSPO's division by L in the
gradient, so a token counts the same in every response; the clip is GSPO's.
"""

from __future__ import annotations

from fspo.objectives.sequence.gspo import GSPO
from fspo.objectives.sequence.length_family import Exponents


class LUSPO(GSPO):
    """GSPO times length."""

    name = "luspo"
    label = "LUSPO"
    summary = "GSPO with each response's loss multiplied by its length"
    aggregation = "sequence_mean_of_sums"

    @property
    def exponents(self) -> Exponents:
        return Exponents(1.0, 1.0, 1.0)
