"""`fspo train` in three layouts: two processes, one process with two threads, and one process with one thread.

    python benchmarks/processes.py [--model tiny:4x128] [--repeats 5] [--steps 6] [--all-rows]

All start from the same warm start and train on the same prompts; 128 completions of up to 128 tokens of counting chains
and 4 updates per step by default. The layouts take turns: one repeat of a layout is a run of its own, of which the
first step is not counted. Printed are the completion tokens per second of each repeat, their medians, the ratios of the
two processes to the others, repeat by repeat, and the seconds from the start of the command to its first step.

Ten kills of one of two processes, with a resume after each, are a test:
`FSPO_KILLS=10 python -m pytest tests/training/test_processes.py -k killed_follower`.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LAYOUTS = {
    "two processes": ["processes=2", "model.threads=1"],
    "one process, two threads": ["processes=1", "model.threads=2"],
    "one process, one thread": ["processes=1", "model.threads=1"],
}
COMMAND = [sys.executable, "-m", "fspo"]


def made(model: str) -> str:
    """The warm start that all layouts share: a model that solves a third of its prompts, so that rewards vary."""
    settings = [f"model.path={model}", "task={name: count, n_min: 4, n_max: 40}", "warmup={solved: 0.33, prompts: 128}",
                "rollout.max_new_tokens=128"]  # fmt: skip
    done = subprocess.run([*COMMAND, "warmup", *settings], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip().splitlines()[-1]


def measured(model: str, layout: list[str], arguments: argparse.Namespace, folder: Path) -> tuple[float, float]:
    """Completion tokens per second of a run, and the seconds before its first step."""
    from fspo.runs import Timing, read_lines

    settings = [
        f"model.path={model}", "warmup=null", "task={name: count, n_min: 4, n_max: 40}", f"steps={arguments.steps + 1}",
        f"rollout.prompts={arguments.completions // 8}", "rollout.group=8", "rollout.max_new_tokens=128",
        "update.minibatches=2", "update.lr=1e-6", "update.schedule=constant",
        f"update.all_rows={str(arguments.all_rows).lower()}", "eval.every=1000", "eval.prompts=1",
        "checkpoint.every=1000", *layout,
    ]  # fmt: skip
    began = time.time()
    subprocess.run(
        [*COMMAND, "train", *settings, "--out", str(folder), "--no-report"], check=True, stdout=subprocess.DEVNULL
    )
    ready = (folder / "config.yaml").stat().st_mtime - began
    lines = read_lines(folder, Timing)[1:]
    seconds = [line.total or 0.0 for line in lines]
    tokens = [(line.tokens_per_second or 0.0) * (line.total or 0.0) for line in lines]
    return sum(tokens) / sum(seconds), ready


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="tiny:4x128")
    parser.add_argument("--completions", type=int, default=128, help="per step, in groups of 8")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6, help="measured steps of a repeat")
    parser.add_argument("--all-rows", action="store_true", help="also compute answers without a gradient")
    arguments = parser.parse_args()
    print("the warm start, made if it is not in the cache", flush=True)
    model = made(arguments.model)
    speeds: dict[str, list[float]] = {name: [] for name in LAYOUTS}
    starts: dict[str, list[float]] = {name: [] for name in LAYOUTS}
    with tempfile.TemporaryDirectory() as scratch:
        for repeat in range(arguments.repeats):
            for k, (name, layout) in enumerate(LAYOUTS.items()):
                speed, ready = measured(model, layout, arguments, Path(scratch) / f"{repeat}-{k}")
                speeds[name].append(speed)
                starts[name].append(ready)
                print(f"repeat {repeat + 1}: {name}: {speed:,.0f} tokens/s", file=sys.stderr, flush=True)
    two, *others = LAYOUTS
    for name, each in speeds.items():
        print(f"{name}: {statistics.median(each):,.0f} tokens/s (" + ", ".join(f"{v:,.0f}" for v in each) + ")")
        print(f"  ready after {statistics.median(starts[name]):.1f} s")
    for name in others:
        ratios = [a / b for a, b in zip(speeds[two], speeds[name], strict=True)]
        print(f"{two} over {name}: {statistics.median(ratios):.2f}x (" + ", ".join(f"{r:.2f}" for r in ratios) + ")")


if __name__ == "__main__":
    main()
