"""Time and memory of every objective, forward plus backward on (512, 4096) float32.

    python benchmarks/cost.py

Time is a ratio to the plain `(exp(lp - old) * A * mask).sum()` in the same run: each round times every objective once,
with the plain loss right before it, and the median over rounds of the ratio is shown. Memory is the peak beyond the
inputs and the gradient, in tensors of (B, T), from the allocator's own record.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import fspo

B, T = 512, 4096
SEQUENCE_LEVEL = ("fspo", "fspo_adaptive", "fspo_studentized", "gspo", "luspo", "rloo")


def inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    old = -torch.rand(B, T, generator=g)
    logprobs = (old + 0.02 * torch.randn(B, T, generator=g)).requires_grad_()
    lengths = torch.randint(T // 8, T + 1, (B, 1), generator=g)
    return logprobs, old, torch.randn(B, generator=g), torch.arange(T) < lengths


def plain(logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    return (torch.exp(logprobs - old) * advantages.unsqueeze(-1) * mask).sum()


def seconds(loss: Callable[[], Tensor], logprobs: Tensor) -> float:
    logprobs.grad = None
    start = time.perf_counter()
    loss().backward()
    return time.perf_counter() - start


def allocations(work: Callable[[], Tensor | None]) -> tuple[Tensor | None, int, int]:
    """What `work` returns, the bytes it still holds when it is done, and the most it held on the way."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        result = work()
    held = most = 0
    events = [e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]  # type: ignore[union-attr]
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return result, held, most


def peak_tensors(loss: Callable[[], Tensor], logprobs: Tensor) -> float:
    """The most memory held at once beyond the inputs and the gradient, in tensors of (B, T) float32."""
    logprobs.grad = None
    value, kept, forward = allocations(loss)
    assert value is not None
    _, _, backward = allocations(lambda: value.backward())
    tensor = 4 * B * T
    return max(forward, kept + backward - tensor) / tensor


def measure(rounds: int) -> dict[str, tuple[float, float]]:
    """Ratio of time and tensors of memory, by objective."""
    batch = inputs()
    losses: dict[str, Callable[[], Tensor]] = {"plain": lambda: plain(*batch)}
    for name in fspo.objectives.names():
        objective = fspo.objectives.get(name)
        losses[name] = lambda objective=objective: objective(*batch).loss
    for loss in losses.values():
        seconds(loss, batch[0])
    ratios: dict[str, list[float]] = {name: [] for name in losses}
    for _ in range(rounds):
        for name, loss in losses.items():
            base = seconds(losses["plain"], batch[0])
            ratios[name].append(seconds(loss, batch[0]) / base)
    return {name: (statistics.median(r), peak_tensors(losses[name], batch[0])) for name, r in ratios.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"forward + backward on ({B}, {T}) float32, {arguments.threads} threads, {arguments.rounds} rounds")
    print(f"{'objective':>16}  {'time / plain':>12}  {'bar':>4}  {'memory, (B, T) tensors':>22}")
    for name, (ratio, memory) in measure(arguments.rounds).items():
        bar = "" if name == "plain" else "1.2" if name in SEQUENCE_LEVEL else "3.0"
        print(f"{name:>16}  {ratio:>12.2f}  {bar:>4}  {memory:>22.2f}")


if __name__ == "__main__":
    main()
