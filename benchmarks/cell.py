"""The time of a cell of `fspo compare`, compared with the same `fspo train` alone.

    python benchmarks/cell.py [--repeats 5]

Both run in turn in one process with one thread; the cell also evaluates the run folder and builds its row. The work of
the driver per row (`store.add`, `plan.ready`) is timed on a store of 430 rows, more than the headline suite has.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")


def main() -> None:
    from fspo.comparisons.cell import make_start, run_cell
    from fspo.comparisons.plan import Plan
    from fspo.comparisons.store import Store
    from fspo.comparisons.suite import load
    from fspo.config import TrainConfig
    from fspo.runtime import quiet
    from fspo.training.loop import train

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    quiet()
    plan = Plan(load("quick"))
    cell = next(c for c in plan.test if c.method == "fspo")
    assert cell.warm is not None
    warm = plan.warm[cell.warm]
    start = make_start(warm)
    config = TrainConfig(**cell.config)
    alone_config = config.model_copy(update={"warmup": None, "model": config.model.model_copy(update={"path": start})})
    alone, inside, driver = [], [], []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for i in range(repeats):
            began = time.perf_counter()
            train(alone_config, folder / f"run-{i}")
            alone.append(time.perf_counter() - began)
            began = time.perf_counter()
            row = run_cell(cell, warm, folder / "work", "")
            inside.append(time.perf_counter() - began)
        store = Store(folder / "results.parquet")
        store.put_first([row | {"key": str(i), "suite": "quick"} for i in range(430)])
        for _ in range(repeats):
            began = time.perf_counter()
            store.add(row | {"suite": "quick"})
            plan.ready(store.rows, (), plan.warm)
            driver.append(time.perf_counter() - began)
    a, b, c = (statistics.median(values) for values in (alone, inside, driver))
    print(f"fspo train alone {a:.2f} s, as a cell {b:.2f} s ({b / a - 1:+.1%}), driver {c:.3f} s/cell ({c / a:.1%})")


if __name__ == "__main__":
    main()
