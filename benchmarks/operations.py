"""Where the time of a step goes, by operation, and how fast this processor multiplies matrices of those shapes.

    python benchmarks/operations.py [--model FOLDER]

One thread, 64 completions of up to 128 tokens of counting chains, every row computed. FOLDER is a model such as
`vs_trl.py --case tiny` makes in its output folder; the default is a fresh tiny:4x128. Printed are the operations with
the largest share of the updates' and of the rollout's time (torch.profiler), and the speed of products of N tokens.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from fspo import runtime

runtime.prepare()

from steps import Ours, settings  # noqa: E402

SHAPES = ((128, 128), (128, 384), (384, 128))  # inputs and outputs of the layers of a tiny 4x128 model
TOKENS = (1024, 2350, 4700)


def shares(work: Callable[[], object], most: int = 8) -> list[tuple[str, float]]:
    """The operations with the largest share of the time of `work`."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as found:
        work()
    rows = sorted(found.key_averages(), key=lambda row: row.self_cpu_time_total, reverse=True)
    total = sum(row.self_cpu_time_total for row in rows)
    return [(row.key, row.self_cpu_time_total / total) for row in rows[:most]]


def speed(rows: int, inner: int, columns: int) -> float:
    """GFLOP/s of a product, the best of 12 in CPU time."""
    import torch

    a, b = torch.randn(rows, inner), torch.randn(inner, columns)
    seconds = []
    for _ in range(13):
        start = time.process_time()
        for _ in range(3):
            a @ b
        seconds.append((time.process_time() - start) / 3)
    return 2e-9 * rows * inner * columns / min(seconds[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="tiny:4x128")
    model = parser.parse_args().model

    from fspo.training.collect import collect

    count = {"name": "count", "n_min": 4, "n_max": 40}
    side = Ours(settings(model, count, 8, 8, 128, token_budget=16384, all_rows=True), threads=1)

    def rollout() -> object:
        return collect(side.policy, side.task, side.scorer, side.config, 1, 0, side.team)

    side.step()  # not counted
    experience, _ = collect(side.policy, side.task, side.scorer, side.config, 1, 0, side.team)
    for name, work in (("updates", lambda: side.learner.learn(experience, 2)), ("rollout", rollout)):
        print(f"{name}: " + ", ".join(f"{key} {100 * share:.0f} %" for key, share in shares(work)))
    for n in TOKENS:
        found = ", ".join(f"{i} to {o}: {speed(n, i, o):.0f}" for i, o in SHAPES)
        print(f"products of {n} tokens, GFLOP/s on one core: {found}; weights' gradient {speed(128, n, 384):.0f}")
    print(f"product of 2,048 x 2,048: {speed(2048, 2048, 2048):.0f}")


if __name__ == "__main__":
    main()
