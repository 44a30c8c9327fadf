"""Time of every objective, forward plus backward on (512, 4096) float32; tests/objectives/test_cost.py has the memory.

    python benchmarks/cost.py

Time is a ratio to the plain loss `(exp(lp - old) * A * mask).sum()`: each round times every objective once, with the
plain loss right before it, and the median of the ratio over rounds is shown.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

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


def measure(rounds: int) -> dict[str, float]:
    """Time ratio by objective."""
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
    return {name: statistics.median(r) for name, r in ratios.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"forward + backward on ({B}, {T}) float32, {arguments.threads} threads, {arguments.rounds} rounds")
    print(f"{'objective':>16}  {'time / plain':>12}  {'bar':>4}")
    for name, ratio in measure(arguments.rounds).items():
        bar = "" if name == "plain" else "1.2" if name in SEQUENCE_LEVEL else "3.0"
        print(f"{name:>16}  {ratio:>12.2f}  {bar:>4}")


if __name__ == "__main__":
    main()
