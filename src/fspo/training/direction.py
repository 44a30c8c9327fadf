"""How far clipping turns an update: the cosine between the objective's update and the unclipped sequence update.

The true update is the gradient of exp(S) A, summed over responses. The clipped one is the objective's own, weighted as
the objective weighs responses and tokens: where a method's update is another one even without clipping (GRPO
divides by L, GSPO takes exp(S / L)), the cosine shows that difference too. Penalties are in neither.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fspo.fairness import MeasuredCosine, measure_cosine
from fspo.fairness.bins import cut
from fspo.objectives import Objective, Totals
from fspo.objectives.batch import Batch
from fspo.objectives.primitives import capped_ratio
from fspo.runs import Cosine, GradientShare


@dataclass(frozen=True)
class Direction:
    """A measured cosine, and the smallest and largest length of each of its bins."""

    cosine: MeasuredCosine
    ranges: list[tuple[float, float]]

    def line(self, step: int, update: int) -> Cosine:
        """As it is recorded."""
        cosine = self.cosine
        shares = [
            GradientShare(low=low, high=high, true=true, clipped=clipped)
            for (low, high), true, clipped in zip(self.ranges, cosine.true_shares, cosine.clipped_shares, strict=True)
        ]
        return Cosine(
            step=step, update=update, measured=cosine.measured, bound=float(cosine.bound),
            bound_tight=float(cosine.tight), shares=shares,
        )  # fmt: skip


def measure_direction(
    objective: Objective,
    inputs: tuple[Tensor, Tensor, Tensor, Tensor],
    totals: Totals | None,
    staleness: int,
    parameters: Iterable[Tensor],
    bins: int,
) -> Direction | None:
    """The cosine and its bounds over quantile bins of length; None where either update is zero.

    `inputs` are what the objective is called with, before its backward pass; their graph is kept, and no gradient is
    left in the parameters. Takes two backward passes per bin.
    """
    batch = Batch.check(*inputs, totals, staleness)
    clipped, accepted = objective.per_response(batch)
    true = capped_ratio(batch.log_ratio, objective.exponent_cap)[0] * batch.row_advantages
    g, h = (torch.autograd.grad(v.sum(), batch.logprobs, retain_graph=True)[0].double() for v in (true, clipped))
    # Rescale by the least-squares factor; the bound is not scale-invariant.
    scale = float((accepted.double().unsqueeze(-1) * g * h).sum() / h.square().sum()) if h.any() else 0.0
    if not scale:
        return None
    lengths = cut(batch.lengths.double().cpu().numpy(), bins)
    index = torch.as_tensor(lengths.index, device=accepted.device)
    return Direction(measure_cosine(true, scale * clipped, accepted.clamp(0, 1), index, parameters), lengths.ranges)
