"""The processes of a run as one team: what each computes of a whole, and how the parts are put together again.

Every process holds the whole model, the whole rollout and the same optimiser. Each samples and scores its share of the
prompts and differentiates its share of every minibatch; answers, log-ratios and gradients are exchanged, so that all
take the same optimiser step. The first process, which leads, is the only one that writes, prints and saves.

`Team` is one process, which has nothing to exchange. `ProcessTeam` is several, by torch.distributed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, chain, zip_longest
from typing import Any, NoReturn, TypeVar

import torch

T = TypeVar("T")
_NOTHING = object()


class Team:
    """One process."""

    rank = 0
    size = 1
    neighbours = 1  # processes on this machine

    @property
    def leads(self) -> bool:
        """Whether this process is the one that writes, prints and saves."""
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """The values of all processes, in their order."""
        return [value]

    def told(self, value: T) -> T:
        """The leader's value."""
        return value

    def total(self, values: Sequence[float]) -> list[float]:
        """Each number, summed over the processes."""
        return list(values)

    def sum_gradients(self, weights: Sequence[torch.nn.Parameter]) -> None:
        """Replace each gradient by its sum over the processes. A weight that has none anywhere keeps none."""

    def device(self, name: str) -> str:
        """The device of this process, where the configuration names a kind of device."""
        return name

    def dealt(self, items: Sequence[T]) -> list[T]:
        """The items of this process: dealt in turn, for work whose size is not known yet."""
        return list(items[self.rank :: self.size])

    def collected(self, own: list[T]) -> list[T]:
        """The items of all processes in the order in which they were dealt."""
        rounds = zip_longest(*self.gather(own), fillvalue=_NOTHING)
        return [item for item in chain.from_iterable(rounds) if item is not _NOTHING]  # type: ignore[misc]

    def share(self, costs: Sequence[float]) -> range:
        """The places of this process in a list: neighbours, of about the same cost for each process."""
        ends, total = list(accumulate(costs)), sum(costs)
        owner = [int(self.size * (end - cost / 2) / total) for end, cost in zip(ends, costs, strict=True)]
        return range(sum(k < self.rank for k in owner), sum(k <= self.rank for k in owner))


class ProcessTeam(Team):
    """Several processes, with torch.distributed set up; `lost` is called when another process has ended."""

    def __init__(self, lost: Callable[[], NoReturn]) -> None:
        import torch.distributed as dist

        self._dist: Any = dist
        self._lost = lost
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.neighbours = int(os.environ.get("LOCAL_WORLD_SIZE", self.size))

    def gather(self, value: T) -> list[T]:
        values: list[Any] = [None] * self.size
        with self._exchange():
            self._dist.all_gather_object(values, value)
        return values

    def told(self, value: T) -> T:
        values = [value]
        with self._exchange():
            self._dist.broadcast_object_list(values, src=0)
        return values[0]

    def total(self, values: Sequence[float]) -> list[float]:
        numbers = torch.tensor(values, dtype=torch.float64)
        with self._exchange():
            self._dist.all_reduce(numbers)
        return numbers.tolist()

    @torch.no_grad()
    def sum_gradients(self, weights: Sequence[torch.nn.Parameter]) -> None:
        # One buffer: all gradients in float32 (or wider), then for each weight whether it has one.
        kind = torch.promote_types(weights[0].dtype, torch.float32)
        parts = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
        has = torch.tensor([float(w.grad is not None) for w in weights], device=weights[0].device)
        buffer = torch.cat([part.reshape(-1).to(kind) for part in [*parts, has]])
        with self._exchange():
            self._dist.all_reduce(buffer)
        *sums, counts = buffer.split([*(w.numel() for w in weights), len(weights)])
        for weight, found, count in zip(weights, sums, counts.tolist(), strict=True):
            weight.grad = found.view_as(weight).to(weight.dtype) if count else None

    def device(self, name: str) -> str:
        return f"cuda:{os.environ.get('LOCAL_RANK', self.rank)}" if name == "cuda" else name

    @contextmanager
    def _exchange(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError:  # torch.distributed's, where a connection is closed
            self._lost()
