"""Memory of every objective: at most four tensors of (B, T) beyond inputs and gradient.

pytest tests/objectives/test_cost.py -rP        # prints the peaks
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import fspo

B, T = 512, 4096
TENSOR = 4 * B * T  # bytes of a (B, T) float32 tensor
SUMS_ONLY = (  # need nothing per token
    "fspo", "fspo_gate", "fspo_root", "length_family", "gspo", "luspo", "rloo",
)  # fmt: skip


def allocations(work: Callable[[], Tensor | None]) -> tuple[Tensor | None, int, int]:
    """The result of `work`, the bytes allocated when it returns, and the peak until then."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        result = work()
    held = most = 0
    events = [e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return result, held, most


@pytest.mark.parametrize("name", fspo.objectives.names())
def test_peak_memory(name: str) -> None:
    g = torch.Generator().manual_seed(0)
    old = -torch.rand(B, T, generator=g)
    logprobs = (old + 0.02 * torch.randn(B, T, generator=g)).requires_grad_()
    mask = torch.arange(T) < torch.randint(T // 8, T + 1, (B, 1), generator=g)
    advantages = torch.randn(B, generator=g)
    objective = fspo.objectives.get(name)
    loss, kept, forward = allocations(lambda: objective(logprobs, old, advantages, mask).loss)
    assert loss is not None
    _, _, backward = allocations(lambda: torch.autograd.backward(loss))
    peak = max(forward, kept + backward - TENSOR) / TENSOR
    print(f"{name}: {peak:.2f} tensors")
    assert peak <= (2.1 if name in SUMS_ONLY else 4)
