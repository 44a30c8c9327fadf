"""A vLLM engine shared by the tests: its start takes longer than all they do with it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from fspo.model.loading import Policy
from fspo.rollout.vllm_sampler import VllmSampler
from helpers.twelve_words import build


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("vllm") is None:
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="vllm is not installed"))


@pytest.fixture(scope="session")
def policy() -> Policy:
    made: Policy = build(0)
    return made


@pytest.fixture(scope="session")
def engine(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmSampler]:
    with VllmSampler(policy, 0.25, tmp_path_factory.mktemp("vllm") / "vllm.log") as sampler:
        yield sampler


@pytest.fixture
def sampler(engine: VllmSampler, policy: Policy) -> VllmSampler:
    """The shared engine with the first policy's weights, whatever the last test left in it."""
    engine.sync(policy)
    return engine
