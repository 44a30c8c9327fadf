"""Two commits against each other: steps of training, and an audit of 10 million rows, in turn.

    git worktree add --detach ../other COMMIT
    python benchmarks/commits.py --other ../other/src [--repeats 5] [--rows 10000000]

`demo` is what `make demo` trains. Each repeat of a side is a process of its own; the first step is not counted.
Figures are processor seconds (`cpu`) and tokens per second of the wall clock (`speed`), this tree over the
other: medians of the repeats' ratios with their range. Above 1 this tree is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from audit import write_answers

OURS = Path(__file__).resolve().parents[1] / "src"
RUNS = {"demo": ["steps=5"]}  # what to change in the default run


def measured(source: Path, arguments: list[str]) -> float:
    """Processor seconds of one command of a side."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = os.environ | {"PYTHONPATH": str(source.resolve())}
    subprocess.run([sys.executable, "-m", "fspo", *arguments], env=environment, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def speed(folder: Path) -> float:
    """Tokens per second of the steps after the first."""
    lines = [json.loads(line) for line in (folder / "timings.jsonl").read_text().splitlines()]
    return statistics.median(line["tokens_per_second"] for line in lines[1:])


def shown(name: str, ratios: list[float]) -> None:
    print(f"{name}: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, required=True, help="the folder src of the other commit")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--only", choices=[*RUNS, "audit"], help="measure one part")
    given = parser.parse_args()
    sides = {"this": OURS, "other": given.other}
    with tempfile.TemporaryDirectory() as scratch:
        for name, settings in RUNS.items():
            if given.only in (None, name):
                speeds: dict[str, list[float]] = {side: [] for side in sides}
                for k in range(given.repeats + 1):  # the first makes the warm start
                    for side, source in sides.items():
                        print(f"{name} {k}/{given.repeats} {side}, {time.strftime('%X')}", file=sys.stderr, flush=True)
                        folder = Path(scratch) / f"{name}-{side}-{k}"
                        measured(source, ["train", *settings, "eval.prompts=16", "--out", str(folder)])
                        speeds[side].append(speed(folder))
                shown(f"{name}, speed", [a / b for a, b in zip(speeds["this"][1:], speeds["other"][1:], strict=True)])
        if given.only in (None, "audit"):
            rows = Path(scratch) / "rows.parquet"
            write_answers(rows, given.rows)
            seconds: dict[str, list[float]] = {side: [] for side in sides}
            for k in range(given.repeats):
                for side, source in sides.items():
                    print(f"audit {k}/{given.repeats} {side}, {time.strftime('%X')}", file=sys.stderr, flush=True)
                    seconds[side].append(measured(source, ["audit", str(rows)]))
            shown("audit, cpu", [b / a for a, b in zip(seconds["this"], seconds["other"], strict=True)])


if __name__ == "__main__":
    main()
