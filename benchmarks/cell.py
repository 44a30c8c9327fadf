"""What a cell of `fspo compare` costs beside the same `fspo train` alone: python benchmarks/cell.py [--repeats 5]

Both in one process with one thread, in turn; the cell also measures the run's folder and makes its row. What the driver
then does with the row (`store.add`, `plan.ready`) is timed on a store of as many rows as the headline suite has.
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
    from fspo.comparing.cell import make_start, run_cell
    from fspo.comparing.store import Store
    from fspo.comparing.suite import Plan, load
    from fspo.local.config import TrainConfig
    from fspo.local.loop import train
    from fspo.local.runtime import quiet

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
    print(f"fspo train alone {a:.2f} s, as a cell {b:.2f} s ({b / a - 1:+.1%}), driver {c:.3f} s a cell ({c / a:.1%})")


if __name__ == "__main__":
    main()
