"""Memory of every objective: at most four tensors of (B, T) beyond inputs and gradient, from the allocator's record."""

from __future__ import annotations

import pytest

import cost
import fspo


@pytest.mark.parametrize("name", fspo.objectives.names())
def test_peak_memory(name: str) -> None:
    batch = cost.inputs()
    objective = fspo.objectives.get(name)
    assert cost.peak_tensors(lambda: objective(*batch).loss, batch[0]) <= (2.1 if name in cost.SEQUENCE_LEVEL else 4)
