"""Sampling in a second thread, from a copy of the policy, while the policy itself is trained."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import torch

from fspo.model.loading import Policy

T = TypeVar("T")


class Shadow:
    """A copy of the policy's weights as they were before the updates of a step: memory for one more model."""

    def __init__(self) -> None:
        self._copy: Policy | None = None

    @contextmanager
    def sampling(self, sample: Callable[[Policy, int], T], policy: Policy, step: int) -> Iterator[Future[T]]:
        """Run `sample(copy, step)` in another thread until it is done; the caller is free to change `policy`."""
        with ThreadPoolExecutor(1) as thread:
            yield thread.submit(sample, self._of(policy), step)

    @torch.no_grad()
    def _of(self, policy: Policy) -> Policy:
        if self._copy is None:
            self._copy = replace(policy, model=copy.deepcopy(policy.model))
        else:
            for mine, theirs in zip(self._copy.model.parameters(), policy.model.parameters(), strict=True):
                mine.copy_(theirs)
        return self._copy
