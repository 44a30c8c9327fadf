"""Float32 master weights for a model that computes in lower precision.

A bfloat16 weight has 8 bits of mantissa: an update smaller than 0.4 % of the weight is rounded away, which at the
learning rates of reinforcement learning is nearly every update. The optimiser therefore moves float32 copies, in which
gradients of micro-batches are added up too, and the model's weights are those copies, rounded. A float32 model is its
own master.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

FILE = "master.safetensors"  # in a checkpoint


LOW = (torch.bfloat16, torch.float16)


@torch.no_grad()
def rounded_away(parameters: Iterable[torch.nn.Parameter], lr: float) -> float:
    """The share of weights that an update of size `lr`, as Adam makes it, would leave as they are, by rounding.

    Estimated from some weights of each parameter; weights of full precision are not counted as such.
    """
    lost = seen = 0
    for p in parameters:
        weights = p.detach().flatten()[:: max(1, p.numel() // 4096)].abs().float()
        half_a_unit = torch.finfo(p.dtype).eps / 4  # of a weight, at least, between one number and the next
        lost += int((weights * half_a_unit > lr).sum()) if p.dtype in LOW else 0
        seen += weights.numel()
    return lost / max(1, seen)


class MasterWeights:
    """The weights that the optimiser moves, one per trainable parameter of the model."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._model = list(parameters)
        self.separate = any(p.dtype in LOW for p in parameters)
        self.weights: list[torch.nn.Parameter] = (
            [torch.nn.Parameter(p.detach().float().clone()) for p in parameters] if self.separate else self._model
        )

    @torch.no_grad()
    def accumulate(self) -> None:
        """Move the model's gradients of a micro-batch to the master weights, added to those already there."""
        if not self.separate:
            return
        for master, p in zip(self.weights, self._model, strict=True):
            if p.grad is not None:
                gradient = p.grad.to(master.dtype)
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)
                p.grad = None

    def no_gradient(self) -> None:
        """The gradient of an update to which no response contributes: zero, and not none."""
        for master in self.weights:
            master.grad = torch.zeros_like(master)

    @torch.no_grad()
    def publish(self) -> None:
        """Round the master weights into the model."""
        if self.separate:
            for master, p in zip(self.weights, self._model, strict=True):
                p.copy_(master)

    def save(self, folder: Path) -> None:
        """Into a checkpoint; nothing where the model is its own master."""
        if self.separate:
            save_file({str(i): w.detach().contiguous() for i, w in enumerate(self.weights)}, folder / FILE)

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """From a checkpoint, also into the model."""
        if self.separate:
            found: dict[str, Tensor] = load_file(folder / FILE)
            for i, master in enumerate(self.weights):
                master.copy_(found[str(i)])
            self.publish()
