"""What runs gained on held-out prompts: first and last evaluation, and the difference with a 95 % interval.

    python benchmarks/gain.py runs/smollm2 runs/smollm2-grpo runs/smollm2-gspo

The interval is Newcombe's (1998, method 10), from the two Wilson intervals. It takes the two evaluations as
independent; they ask the same prompts, so it errs on the wide side.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from fspo.local.config import read
from fspo.local.records import read_lines


def difference(before: tuple[float, float, float], after: tuple[float, float, float]) -> tuple[float, float, float]:
    """after - before, each a rate with its Wilson interval."""
    (p, p_low, p_high), (q, q_low, q_high) = before, after
    gain = q - p
    return gain, gain - math.hypot(q - q_low, p_high - p), gain + math.hypot(q_high - q, p - p_low)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    for run in parser.parse_args().runs:
        rows = read_lines(run / "evaluations.jsonl")
        first, last = (((row["accuracy"], *row["interval"])) for row in (rows[0], rows[-1]))
        gain, low, high = difference(first, last)
        seconds = sum(row["total"] for row in read_lines(run / "timings.jsonl"))
        name = read(run / "config.yaml", []).objective["name"]
        print(
            f"{name:6s} step {rows[0]['step']} to {rows[-1]['step']}, {rows[0]['prompts']} prompts: "
            f"{first[0]:.1%} ({first[1]:.1%} to {first[2]:.1%}) -> {last[0]:.1%} ({last[1]:.1%} to {last[2]:.1%}), "
            f"gain {100 * gain:+.1f} points ({100 * low:+.1f} to {100 * high:+.1f}), {seconds:.0f} s of steps"
        )


if __name__ == "__main__":
    main()
