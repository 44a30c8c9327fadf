"""The gain of runs on held-out prompts: first and last evaluation, and the difference with a 95 % interval.

    python benchmarks/gain.py runs/smollm2 runs/smollm2-grpo runs/smollm2-gspo

The interval is Newcombe's (1998, method 10), from the two Wilson intervals. It assumes that the two evaluations are
independent; they have the same prompts, so the interval is wider than necessary.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from fspo.config import read
from fspo.runs import Evaluated, Timing, read_lines


def difference(before: tuple[float, float, float], after: tuple[float, float, float]) -> tuple[float, float, float]:
    """after - before with its interval; each argument is a rate and its Wilson interval."""
    (p, p_low, p_high), (q, q_low, q_high) = before, after
    gain = q - p
    return gain, gain - math.hypot(q - q_low, p_high - p), gain + math.hypot(q_high - q, p - p_low)


def rate(evaluated: Evaluated) -> tuple[float, float, float]:
    """The accuracy of an evaluation with its Wilson interval."""
    assert evaluated.accuracy is not None
    assert evaluated.interval is not None
    return evaluated.accuracy, *evaluated.interval


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    for run in parser.parse_args().runs:
        lines = read_lines(run, Evaluated)
        first, last = rate(lines[0]), rate(lines[-1])
        gain, low, high = difference(first, last)
        seconds = sum(timing.total or 0.0 for timing in read_lines(run, Timing))
        name = read(run / "config.yaml", []).objective["name"]
        print(
            f"{name:6s} step {lines[0].step} to {lines[-1].step}, {lines[0].prompts} prompts: "
            f"{first[0]:.1%} ({first[1]:.1%} to {first[2]:.1%}) -> {last[0]:.1%} ({last[1]:.1%} to {last[2]:.1%}), "
            f"gain {100 * gain:+.1f} points ({100 * low:+.1f} to {100 * high:+.1f}), {seconds:.0f} s of steps"
        )


if __name__ == "__main__":
    main()
