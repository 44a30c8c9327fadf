"""Threads, waiting and the heap of the process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from fspo import runtime
from fspo.model.loading import load
from fspo.rollout.generate import generate


@pytest.mark.parametrize(
    ("before", "expected"), [({}, runtime.SPIN), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)]
)
def test_prepare_leaves_what_the_user_set(before: dict[str, str], expected: str | None) -> None:
    clean = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    code = (
        "import os, fspo.runtime as r; r.prepare(); "
        "print(os.environ.get('GOMP_SPINCOUNT')); import sys; assert 'torch' not in sys.modules"
    )
    out = subprocess.run([sys.executable, "-c", code], env=clean | before, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == str(expected)


def test_sampling_gives_the_threads_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        generate(load("tiny:1x32"), [[5, 6]], max_new_tokens=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
