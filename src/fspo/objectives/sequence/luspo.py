"""LUSPO (arXiv 2602.05261): GSPO with each response's loss multiplied by its length.

    J = mean_i L min( s A , clip(s, 1 - clip_low, 1 + clip_high) A ),     s = exp(S / L)

S sum of the token log-ratios of a response, L its trained tokens, A advantage. Undoes GSPO's division by L in the
gradient, so a token counts the same in every response; the clip is GSPO's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from fspo.objectives.batch import Batch
from fspo.objectives.clipping import Weighting
from fspo.objectives.objective import Aggregation, Surrogate
from fspo.objectives.sequence.gspo import GSPO


class LUSPO(GSPO):
    """GSPO times length."""

    name: ClassVar[str] = "luspo"
    summary: ClassVar[str] = "GSPO with each response's loss multiplied by its length"
    aggregation: ClassVar[Aggregation] = "sequence_mean_of_sums"

    def weighting(self, lengths: Any) -> Weighting:
        return Weighting(1 / lengths, lengths)

    def surrogate(self, batch: Batch) -> Surrogate:
        gspo = super().surrogate(batch)
        return replace(gspo, value=gspo.value * batch.lengths)
