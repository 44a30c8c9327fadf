"""The limit on the norm of a gradient: a fixed number, a multiple of what is usual for the run, or both.

The norm of a sum over tokens grows with the length of the answers, that of a mean does not: a fixed limit acts on every
update of one objective and on none of another. A multiple of the median norm acts on the same share of updates whatever
the objective's scale.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from statistics import median

import torch
from torch import Tensor

from fspo.config import UpdateConfig

WINDOW = 64
"""Updates that the median is taken over."""


class NormLimit:
    """Limits the gradient norms of a run; remembers the last of them."""

    def __init__(self, settings: UpdateConfig, earlier: Iterable[float] = ()) -> None:
        self.fixed, self.ratio = settings.clip_norm, settings.clip_ratio
        self.norms: deque[float] = deque(earlier, maxlen=WINDOW)

    @property
    def largest(self) -> float:
        """The largest norm that the next update may have."""
        fixed = math.inf if self.fixed is None else self.fixed
        usual = math.inf if self.ratio is None or not self.norms else self.ratio * median(self.norms)
        return min(fixed, usual)

    def apply(self, weights: Sequence[Tensor]) -> tuple[float, bool]:
        """Shorten the gradient of `weights` to the limit; returns its norm before, and whether it was above.

        A norm of zero, of a batch without a gradient, and one that is not finite say nothing about what is usual.
        """
        largest = self.largest
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients))
        if largest < norm < math.inf:
            torch._foreach_mul_(gradients, largest / norm)
        if math.isfinite(norm) and norm > 0:
            self.norms.append(norm)
        return norm, norm > largest
