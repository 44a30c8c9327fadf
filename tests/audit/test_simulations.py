"""Simulated files with known truth, some with wild rows: intervals cover, and the band stays flat on clean rows."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


@pytest.fixture(scope="module")
def simulate() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "simulate.py"
    spec = importlib.util.spec_from_file_location("simulate", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["simulate"] = module
    spec.loader.exec_module(module)
    return module


def check(simulate: ModuleType, name: str, n: int, files: int) -> None:
    process = simulate.Process(**simulate.PROCESSES[name])
    fresh = process.fresh(0)
    judged = [simulate.judge(process, n, seed, fresh) for seed in range(files)]
    for key in judged[0].covers:
        known = [j.covers[key] for j in judged if j.covers[key] is not None]
        # 93 %, less three standard errors of the count: there are 200 of them.
        assert sum(known) >= 0.93 * len(known) - 3 * np.sqrt(0.93 * 0.07 * len(known)), (name, n, key)
    worse = [j.flatness - j.clean for j in judged if j.flatness is not None and j.clean is not None]
    if n >= 300:
        assert np.mean(np.array(worse) <= 0.02) >= 0.95, (name, n)


@pytest.mark.parametrize("name", ["Gaussian", "1 % shifted by -10"])
def test_a_few_files(simulate: ModuleType, name: str) -> None:
    for n in (30, 60, 300):
        check(simulate, name, n, 15)


@pytest.mark.slow
@pytest.mark.parametrize("n", [30, 60, 300, 3000])
def test_all_processes(simulate: ModuleType, n: int) -> None:
    for name in simulate.PROCESSES:
        check(simulate, name, n, 60)
