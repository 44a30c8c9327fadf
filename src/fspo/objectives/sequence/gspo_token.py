"""GSPO-token (arXiv 2507.18071, section 4.3): GSPO's ratio with a gradient, and an advantage, of each token.

    J = mean_i mean_t min( s_t A_t , clip(s_t, 1 - clip_low, 1 + clip_high) A_t ),   s_t = sg(s) pi / sg(pi)

s = exp(S / L) of the response, sg stop-gradient. With one advantage per response it is GSPO, in value and gradient;
it also takes advantages of shape (B, T). verl's `gspo` is this one, though with a mean over all tokens by default;
this one follows the paper.
"""

from __future__ import annotations

from fspo.objectives.batch import Batch, masked
from fspo.objectives.objective import Surrogate
from fspo.objectives.primitives import pessimistic
from fspo.objectives.sequence.gspo import GSPO
from fspo.tensors import no_grad


class GSPOToken(GSPO):
    """Sequence-mean ratio with a fixed range, differentiated token by token."""

    name = "gspo_token"
    label = "GSPO-token"
    summary = "GSPO with token gradients; takes an advantage for each token"

    @no_grad
    def surrogate(self, batch: Batch) -> Surrogate:
        A = batch.token_advantages
        mean = batch.spread(batch.log_ratio / batch.lengths)
        _, low, high = self.half_widths(batch.totals)
        clip = pessimistic(mean, A, -low, high, self.exponent_cap)
        if batch.packing is None and not batch.by_token:  # (B, 1): the same for all tokens of a response
            accepted, capped = (marks.squeeze(-1).to(A.dtype) for marks in (clip.accepted, clip.capped))
        else:
            accepted, capped = batch.share(clip.accepted), batch.share(clip.capped)
        value = clip.ratio * A
        return Surrogate(value, accepted, capped, slope=masked(value, clip.accepted))
