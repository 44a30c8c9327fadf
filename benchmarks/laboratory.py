"""The laboratory's figures and tables: what each objective optimises, and where its distortion is negligible.

    python benchmarks/laboratory.py --figures docs/images

Prompts of equal weight whose lengths are spread evenly in log. The shorter half wants more ones than the longer half,
with one shared parameter. Every rule has the band that clips the same share of the responses of a rollout.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

import fspo
from fspo import laboratory
from fspo.laboratory import Kind, Problem, Regime
from fspo.objectives import Objective
from fspo.pages import charts, images
from fspo.pages.document import Plot

SHORTEST, KINDS = 8, 6
SPREADS = (4, 16, 64, 256, 1024, 4096)
RATES = (0.01, 0.03, 0.1, 0.3)
UPDATES = (2, 4, 16, 64)
RATE, SPREAD = 0.1, 1024
REGIME = Regime(updates=16, jitter=0.005)
CASES = [(graded, deviation) for graded in (False, True) for deviation in (False, True)]
FLOOR = 1e-3  # points of reward: what is smaller is drawn here
FAMILY = "length_family"
RULES: dict[str, Objective] = {
    "fixed range (rloo)": fspo.objectives.get("rloo"),
    "fspo": fspo.objectives.get("fspo"),
    "gspo": fspo.objectives.get("gspo"),
    "luspo": fspo.objectives.get("luspo"),
    "a = h = 1/2, g = 0": fspo.objectives.get(FAMILY),
    "a = h = g = 1/2": fspo.objectives.get(FAMILY, gain_exponent=0.5),
    "fspo, bounded drift": fspo.objectives.get("fspo", drift="bounded"),
    "a = h = g = 1/2, bounded drift": fspo.objectives.get(FAMILY, gain_exponent=0.5, drift="bounded"),
}
COLOURS = dict(zip(RULES, (5, 3, 4, 1, 2, 6, 8, 7), strict=True))
DRAWN = [name for name in RULES if name != "fspo, bounded drift"]


def problem_of(spread: float, graded: bool = False, kinds: int = KINDS, conflict: bool = True) -> Problem:
    """Without a conflict all lengths want the same share of ones, and the best policy solves half of the prompts."""
    lengths = [int(length) for length in np.geomspace(SHORTEST, SHORTEST * spread, kinds).round()]
    if conflict:
        return laboratory.conflict(lengths, graded=graded)
    reward = laboratory.near(0.4)
    return Problem([Kind(length, lambda share: reward(share) / 2) for length in lengths], graded)


def points_lost(problem: Problem, rule: Objective, regime: Regime, rate: float = RATE) -> laboratory.Losses:
    """In points of reward, with the band that clips this share at the true optimum."""
    banded = laboratory.at_clip_rate(problem, rule, problem.optimum(), regime, rate)
    bias, noise = laboratory.losses(problem, banded, regime)
    return laboratory.Losses(100 * bias, 100 * noise)


def table(head: str, columns: Iterable[object], rows: Iterable[tuple[str, Iterable[str]]]) -> None:
    columns = [str(column) for column in columns]
    print("| " + " | ".join([head, *columns]) + " |\n|" + "---|" * (len(columns) + 1))
    for name, cells in rows:
        print("| " + " | ".join([name, *cells]) + " |")
    print()


def weights_by_length() -> tuple[Problem, dict[str, np.ndarray]]:
    """The effective weight of each length, at the true optimum of prompts of 8 to 32,768 tokens."""
    problem = problem_of(4096, kinds=7)
    theta = problem.optimum()
    found = {}
    for name, rule in RULES.items():
        banded = laboratory.at_clip_rate(problem, rule, theta, REGIME, RATE)
        found[name] = laboratory.effective_weights(problem, banded, theta, REGIME)
    return problem, found


def figures(problem: Problem, weights: dict[str, np.ndarray], lost: dict[str, list[float]]) -> list[Plot]:
    def series(x: list[float], values: dict[str, list[float]]) -> list[charts.Series]:
        return [charts.Series(name, x, values[name], colour=COLOURS[name], dots=True) for name in DRAWN]

    distortion = charts.line(
        "Effective weight of a prompt by the length of its responses",
        f"What a prompt counts in the objective that each rule climbs, relative to the true one. Clip rate {RATE:.0%}.",
        series(problem.lengths.tolist(), {name: np.log2(row).tolist() for name, row in weights.items()}),
        "response length, tokens",
        "log2 of the effective weight (0: as in the true objective)",
        zero=False, log_x=True, width=640, height=340,
    )  # fmt: skip
    negligible = charts.line(
        "Reward lost by the fixed point against the spread of lengths",
        f"Points of expected reward below the true optimum, 16 updates per rollout, clip rate {RATE:.0%}.",
        series([*SPREADS], {name: [math.log10(max(v, FLOOR)) for v in row] for name, row in lost.items()}),
        "longest response over shortest",
        f"log10 of the points of reward lost (less than {FLOOR:g}: drawn there)",
        zero=False, log_x=True, width=640, height=340,
    )  # fmt: skip
    return [Plot("laboratory distortion", distortion), Plot("laboratory negligible", negligible)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--figures", type=Path, help="write the figures into this folder")
    folder = parser.parse_args().figures
    start = time.perf_counter()

    problem, weights = weights_by_length()
    print(f"Effective weight by length, {REGIME.updates} updates, clip rate {RATE:.0%}\n")
    lengths = [f"{int(length):,}" for length in problem.lengths]
    table("rule", lengths, ((name, (f"{w:.3f}" for w in row)) for name, row in weights.items()))

    lost = {name: [points_lost(problem_of(s), rule, REGIME).bias for s in SPREADS] for name, rule in RULES.items()}
    print("Points of reward lost at the fixed point, by longest over shortest response\n")
    table("rule", SPREADS, ((name, (f"{v:.3f}" for v in row)) for name, row in lost.items()))

    print(f"The same by clip rate, longest over shortest {SPREAD}\n")
    wide = problem_of(SPREAD)
    by_rate = {name: [points_lost(wide, rule, REGIME, rate).bias for rate in RATES] for name, rule in RULES.items()}
    table("rule", [f"{r:.0%}" for r in RATES], ((name, (f"{v:.3f}" for v in row)) for name, row in by_rate.items()))

    print(f"The same by updates per rollout, with the band that clips {RATE:.0%} with {REGIME.updates}\n")
    rows = []
    for name, rule in RULES.items():
        banded = laboratory.at_clip_rate(wide, rule, wide.optimum(), REGIME, RATE)
        regimes = [replace(REGIME, updates=updates) for updates in UPDATES]
        rows.append((name, [f"{100 * laboratory.losses(wide, banded, regime).bias:.3f}" for regime in regimes]))
    table("rule", UPDATES, rows)

    for conflict in (True, False):
        print(f"Bias + noise of 1,000 responses, points of reward; lengths {'' if conflict else 'do not '}conflict\n")
        rows = []
        for name, rule in RULES.items():
            cells = []
            for graded, deviation in CASES:
                regime = replace(REGIME, deviation=deviation)
                found = points_lost(problem_of(SPREAD, graded, conflict=conflict), rule, regime)
                cells.append(f"{found.bias:.2f} + {found.noise / 1000:.3f}")
            rows.append((name, cells))
        table("rule", [f"{'graded' if graded else '0 or 1'}{', deviation' * d}" for graded, d in CASES], rows)

    if folder:
        for path in images.write_svg(figures(problem, weights, lost), folder):
            print(f"figure: {path}")
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
