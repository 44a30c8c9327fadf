"""How time and memory grow with the rollout and with the length of answers.

    python benchmarks/growth.py rollouts [--sizes 64 128 ... 2048]      a step, answers of up to 128 tokens
    python benchmarks/growth.py lengths [--sizes 128 256 ... 4096]      a step of 16 answers that all have this length
    python benchmarks/growth.py sampling [--sizes 128 512 2048]         sampling alone, 128 answers of this length
    python benchmarks/growth.py cell                                    a cell of `fspo compare` over `fspo train`

The first two are whole steps of the tiny 4x128 model, with every row computed; `sampling` is the tiny 2x64 model. Each
size has its own process, and the processes take turns; the first turn is not counted. The exponent is the least-squares
slope of log time over log size. Peak memory is the high-water mark of a process, also shown minus the memory held once
the model was loaded. With --output FILE the table is also written as JSON. `cell` runs a
cell and the same run alone in turn, in one process with one thread; the driver's work per row (`store.add`,
`plan.ready`) is timed on a store of 430 rows.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from workloads import COUNT, Chance, ForcedLanes, Ours, settings

SIZES = {
    "rollouts": [64, 128, 256, 512, 1024, 2048],
    "lengths": [128, 256, 512, 1024, 2048, 4096],
    "sampling": [128, 512, 2048],
}
GROUP = 8


def step(what: str, size: int, budget: int, threads: int) -> Callable[[], dict[str, float]]:
    task, rows, limit = (COUNT, size, 128) if what == "rollouts" else (Chance(), 16, size)
    side = Ours(settings("tiny:4x128", task, rows // GROUP, GROUP, limit, token_budget=budget, all_rows=True), threads)
    if what == "lengths":
        ForcedLanes().lengths = [size] * rows
    return side.step


def sampling(size: int, threads: int) -> Callable[[], dict[str, float]]:
    from fspo.model.loading import load, set_threads
    from fspo.rollout.generate import generate

    policy = load("tiny:2x64")
    set_threads(policy, threads)
    policy.eos_ids = ()
    rng = random.Random(0)
    prompts = [[rng.randrange(20, 64) for _ in range(rng.randint(12, 48))] for _ in range(16)]

    def once() -> dict[str, float]:
        start, cpu = time.perf_counter(), time.process_time()
        tokens = generate(policy, prompts, GROUP, max_new_tokens=size).tokens
        seconds = time.perf_counter() - start
        return {"tokens": tokens, "seconds": seconds, "rollout": seconds, "cpu": time.process_time() - cpu}

    return once


def worker(what: str, size: int, budget: int, threads: int, turns: int, pipe: Connection) -> None:
    once = sampling(size, threads) if what == "sampling" else step(what, size, budget, threads)
    loaded = _peak_mb()
    for _ in range(turns):
        pipe.recv()
        pipe.send(once() | {"peak": _peak_mb(), "extra": _peak_mb() - loaded})


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The least-squares slope of log y over log x."""
    return statistics.linear_regression([math.log(v) for v in x], [math.log(v) for v in y]).slope


def cell_overhead(repeats: int) -> None:
    """A cell of `fspo compare` against the same `fspo train` alone, and the driver's work per row."""
    from fspo.comparisons.plan import Plan, train_config
    from fspo.comparisons.run import make_start, run_cell
    from fspo.comparisons.store import Store
    from fspo.comparisons.suite import load
    from fspo.runtime import quiet
    from fspo.training.loop import train

    quiet()
    print("the warm start of the suite quick, made if it is not in the cache", flush=True)
    plan = Plan(load("quick"))
    cell = next(c for c in plan.test if c.method == "fspo")
    assert cell.warm is not None
    warm = plan.warm[cell.warm]
    start = make_start(warm)
    config = train_config(cell.config)
    alone_config = config.model_copy(update={"warmup": None, "model": config.model.model_copy(update={"path": start})})
    alone, inside, driver = [], [], []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for i in range(repeats):
            began = time.perf_counter()
            train(alone_config, folder / f"run-{i}")
            alone.append(time.perf_counter() - began)
            began = time.perf_counter()
            row = run_cell(cell, warm, folder / "work")
            inside.append(time.perf_counter() - began)
            print(f"repeat {i + 1}: alone {alone[-1]:.2f} s, as a cell {inside[-1]:.2f} s", flush=True)
        store = Store(folder / "results.parquet")
        store.put_first([row | {"key": str(i), "suite": "quick"} for i in range(430)])
        for _ in range(repeats):
            began = time.perf_counter()
            store.add(row | {"suite": "quick"})
            plan.ready(store.rows, (), plan.warm)
            driver.append(time.perf_counter() - began)
    a, b, c = (statistics.median(values) for values in (alone, inside, driver))
    print(f"fspo train alone {a:.2f} s, as a cell {b:.2f} s ({b / a - 1:+.1%}), driver {c:.3f} s/cell ({c / a:.1%})")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=[*SIZES, "cell"])
    parser.add_argument("--sizes", type=int, nargs="+")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", type=int, default=4096, help="tokens per micro-batch")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    if args.what == "cell":
        cell_overhead(args.repeats)
        return
    sizes: list[int] = args.sizes or SIZES[args.what]
    spawn = multiprocessing.get_context("spawn")
    pipes: dict[int, Connection] = {}
    workers = []
    for size in sizes:
        pipes[size], other = spawn.Pipe()
        values = (args.what, size, args.budget, args.threads, args.repeats + 1, other)
        workers.append(spawn.Process(target=worker, args=values, daemon=True))
        workers[-1].start()
        other.close()
    turns: dict[int, list[dict[str, float]]] = {size: [] for size in sizes}
    for repeat in range(args.repeats + 1):
        for size, pipe in pipes.items():
            pipe.send("go")
            result = pipe.recv()
            print(f"turn {repeat} of {args.repeats}: {size}: {result['seconds']:.2f} s", file=sys.stderr, flush=True)
            if repeat:
                turns[size].append(result)
    for process in workers:
        process.join()
    print("     size   tokens   seconds   of it rollout     CPU s  us/token   peak MB  above the loaded model")
    table: list[dict[str, float]] = []
    for size, results in turns.items():
        row = {key: statistics.median(r[key] for r in results) for key in ("tokens", "seconds", "rollout", "cpu")}
        table.append({"size": size, **row, "peak": results[-1]["peak"], "extra": results[-1]["extra"]})
        print(
            f"{size:>9} {row['tokens']:>8.0f} {row['seconds']:>9.2f} {row['rollout']:>15.2f} {row['cpu']:>9.2f} "
            f"{1e6 * row['seconds'] / row['tokens']:>9.1f} {results[-1]['peak']:>9.0f} {results[-1]['extra']:>9.0f}"
        )
    summary: dict[str, Any] = {"what": args.what, "repeats": args.repeats, "threads": args.threads, "rows": table}
    for key, name in (("seconds", "time"), ("cpu", "CPU time")):
        summary[f"exponent of {name}"] = slope(sizes, [row[key] for row in table])
        per_token = [row[key] / row["tokens"] for row in table]
        summary[f"{name} per token, last over first"] = per_token[-1] / per_token[0]
    print({key: round(value, 3) for key, value in summary.items() if isinstance(value, float)})
    if args.output is not None:
        args.output.write_text(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
