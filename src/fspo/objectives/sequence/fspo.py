"""FSPO: Fair Sequence Policy Optimization (arXiv 2509.09177).

    J = mean_i min( exp(S_i) A_i , exp(clamp(S_i, b_lo(L_i), b_hi(L_i))) A_i ),
    b_lo(L) = mu L - c_low L^H,   b_hi(L) = mu L + c_high L^H,   H = 1/2

S  sum of a response's token log-ratios        mu  drift per token, the mean of l under the behaviour policy
L  trained tokens of the response              c   half-width of the band
A  advantage

S has mean mu L and a standard deviation near sigma sqrt(L), so this band clips every length at the same rate.
Differs from RLOO in the band alone, from GSPO in the ratio as well. The gradient of a response is w A times the sum
over its tokens.
The dual clip bounds the weight where A < 0: the objective is never below exp(mu L + dual c_high L^H) A.

Which drift: `zero`, as in the paper's later versions, unless responses have thousands of tokens, where -sigma^2 L / 2
is no longer small beside c sqrt(L) and `bounded` follows it. `kl`, as in the paper's first version, only near
on-policy: training lowers the probability of its own responses, and a band centred on the falling mean no longer
limits the update. The band, the drift and the dual clip are the paper's (the value of its dual clip is not public);
the bound on the drift, the exponent H and a band learnt for a wanted clip rate are this project's.
"""

from __future__ import annotations

from pydantic import Field

from fspo.objectives.sequence.length_family import Exponents, LogBand


class FSPO(LogBand):
    """FSPO with a given band, or one learnt for a wanted clip rate."""

    name = "fspo"
    label = "FSPO"
    colour = 3
    summary = "sequence sum, clipped in log space to mu L ± c sqrt(L): every length at the same rate"
    clip_fields = ("c_low", "c_high", "drift", "exponent")

    exponent: float = Field(
        0.5, ge=0, le=1, description="H of the band's width c L^H; 0 is a fixed range; with clip_rate where it starts"
    )

    @property
    def exponents(self) -> Exponents:
        return Exponents(0.0, self.exponent, 0.0)
