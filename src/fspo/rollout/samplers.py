"""The sampler of a run: the interface, the local sampler, and the choice between it and vLLM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from fspo.config import RolloutConfig
from fspo.model.loading import Policy
from fspo.rollout.generate import CACHE_GIB, Rollout, generate
from fspo.rollout.lanes import Watch


class Sampler(Protocol):
    """Samples answers from the full distribution of the weights of the last `sync`."""

    def sync(self, policy: Policy) -> None:
        """Sample with the policy's current weights from now on."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        *,
        max_new_tokens: int,
        temperature: float,
        seed: int,
        places: Sequence[int] | None = None,
        watch: Watch | None = None,
    ) -> Rollout:
        """Sample `n` answers per prompt; see `rollout.generate`. `watch` may get answers as they end."""


class LocalSampler:
    """The package's own decoder, on the policy's own weights."""

    def __init__(self, policy: Policy, cache_gib: float = CACHE_GIB) -> None:
        self.policy, self.cache_gib = policy, cache_gib

    def sync(self, policy: Policy) -> None:
        self.policy = policy

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        *,
        max_new_tokens: int,
        temperature: float,
        seed: int,
        places: Sequence[int] | None = None,
        watch: Watch | None = None,
    ) -> Rollout:
        return generate(
            self.policy, prompts, n, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed,
            places=places, cache_gib=self.cache_gib, watch=watch,
        )  # fmt: skip


@contextmanager
def start(config: RolloutConfig, policy: Policy, log: Path, *, logprobs: bool = False) -> Iterator[Sampler]:
    """The sampler that `config` names. vLLM writes to `log`; with `logprobs` its rollouts carry its own log-probs."""
    yield LocalSampler(policy, config.cache_gib)
