"""Time and peak memory of a step as the rollout grows from 64 to 1,024 completions, on the tiny 4x128 model.

    python benchmarks/growth.py [--sizes 64 128 256 512 1024] [--repeats 3] [--threads 2] [--budget 4096]

Each size has its own process, and the processes take turns, one step at a time; the first step is not counted. The
exponent is the least-squares slope of log time over log completion tokens (and over log completions). Peak memory is
the high-water mark of a process, also shown minus the memory held once the model was loaded. A minibatch is half of the
rollout and exceeds the token budget of a micro-batch from about 2 x budget / mean length completions on; sampling runs
256 completions at once.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import resource
import statistics
from collections.abc import Sequence
from multiprocessing.connection import Connection

from fspo import runtime

runtime.prepare()

from steps import Ours, settings  # noqa: E402


def worker(size: int, group: int, budget: int, threads: int, turns: int, pipe: Connection) -> None:
    task = {"name": "count", "n_min": 4, "n_max": 40}
    side = Ours(settings("tiny:4x128", task, size // group, group, 128, token_budget=budget), threads)
    loaded = _peak_mb()
    for _ in range(turns):
        pipe.recv()
        pipe.send(side.step() | {"peak": _peak_mb(), "extra": _peak_mb() - loaded})


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The least-squares slope of log y over log x."""
    return statistics.linear_regression([math.log(v) for v in x], [math.log(v) for v in y]).slope


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 128, 256, 512, 1024])
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", type=int, default=4096, help="tokens per micro-batch")
    args = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    pipes: dict[int, Connection] = {}
    workers = []
    for size in args.sizes:
        pipes[size], other = spawn.Pipe()
        values = (size, args.group, args.budget, args.threads, args.repeats + 1, other)
        workers.append(spawn.Process(target=worker, args=values, daemon=True))
        workers[-1].start()
        other.close()
    found: dict[int, list[dict[str, float]]] = {size: [] for size in args.sizes}
    for repeat in range(args.repeats + 1):
        for size, pipe in pipes.items():
            pipe.send("go")
            result = pipe.recv()
            if repeat:
                found[size].append(result)
    for process in workers:
        process.join()
    print("completions   tokens   seconds        CPU s  tokens/s   peak MB  above the loaded model")
    middle: dict[str, list[float]] = {}
    for size, results in found.items():
        for key in ("tokens", "seconds", "cpu"):
            middle.setdefault(key, []).append(statistics.median(r[key] for r in results))
        tokens, seconds, cpu = (middle[key][-1] for key in ("tokens", "seconds", "cpu"))
        peak, extra = results[-1]["peak"], results[-1]["extra"]
        print(
            f"{size:>11} {tokens:>8.0f} {seconds:>9.2f} {cpu:>12.2f} {tokens / seconds:>9.0f} {peak:>9.0f} "
            f"{extra:>9.0f}"
        )
    for key, what in (("seconds", "time"), ("cpu", "CPU time")):
        print(
            f"exponent of {what}: {slope(args.sizes, middle[key]):.3f} in completions, "
            f"{slope(middle['tokens'], middle[key]):.3f} in tokens (bar: at most 1.05)"
        )


if __name__ == "__main__":
    main()
