"""Figures and tables of the docs without a model: clip rates by length, and what each objective optimises.

    python benchmarks/laboratory.py --figures docs/images

- Clip rates: what the objectives remove of simulated token log-ratios, independent Gaussians with sigma = 0.02 and the
  drift of an importance ratio, -sigma^2 / 2. A response counts as clipped if its gradient is removed for either sign of
  the advantage; for objectives that clip tokens or change weights softly, the share of the gradient is counted.
- The laboratory: prompts of equal weight whose lengths are spread evenly in log. The shorter half wants more ones than
  the longer half, with one shared parameter. Every rule has the band that clips the same share of a rollout.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import fspo
from fspo import laboratory
from fspo.laboratory import Kind, Problem, Regime
from fspo.laboratory.rollout import Losses
from fspo.objectives import Objective, Totals
from fspo.pages import charts
from fspo.pages.document import Plot, write_svg

SHORTEST, KINDS = 8, 6
SPREADS = (4, 16, 64, 256, 1024, 4096)
RATES = (0.01, 0.03, 0.1, 0.3)
UPDATES = (2, 4, 16, 64)
RATE, SPREAD = 0.1, 1024
REGIME = Regime(updates=16, jitter=0.005)
CASES = {
    "0 or 1": (False, False, 0.005),
    "0 or 1, deviation": (False, True, 0.005),
    "graded": (True, False, 0.005),
    "graded, deviation": (True, True, 0.005),
    "four times the jitter": (False, False, 0.02),
}  # whether rewards are graded and divided by the group's deviation, and the jitter
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
    "fspo_gate": fspo.objectives.get("fspo_gate", clip_rate=None),
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


def points_lost(problem: Problem, rule: Objective, regime: Regime, rate: float = RATE) -> Losses:
    """In points of reward, with the band that clips this share at the true optimum."""
    banded = laboratory.at_clip_rate(problem, rule, problem.optimum(), regime, rate)
    bias, noise = laboratory.losses(problem, banded, regime)
    return Losses(100 * bias, 100 * noise)


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
    by_rule = {}
    for name, rule in RULES.items():
        banded = laboratory.at_clip_rate(problem, rule, theta, REGIME, RATE)
        by_rule[name] = laboratory.effective_weights(problem, banded, theta, REGIME)
    return problem, by_rule


def spaced(name: str, values: list[float], colour: int) -> charts.Series:
    """A line over lengths that are evenly spaced in log."""
    return charts.Series(name, [k + 0.5 for k in range(len(values))], values, colour=colour, dots=True)


def figures(problem: Problem, weights: dict[str, np.ndarray], lost: dict[str, list[float]]) -> list[Plot]:
    def series(values: dict[str, list[float]]) -> list[charts.Series]:
        return [spaced(name, values[name], COLOURS[name]) for name in DRAWN]

    distortion = charts.line(
        "Effective weight of a prompt by the length of its responses",
        f"What a prompt counts in the objective that each rule climbs, relative to the true one. Clip rate {RATE:.0%}.",
        series({name: np.log2(row).tolist() for name, row in weights.items()}),
        "response length, tokens",
        "log2 of the effective weight (0: as in the true objective)",
        zero=False, x_names=[f"{length:,.0f}" for length in problem.lengths], width=640, height=340,
    )  # fmt: skip
    negligible = charts.line(
        "Reward lost by the fixed point against the spread of lengths",
        f"Points of expected reward below the true optimum, 16 updates per rollout, clip rate {RATE:.0%}.",
        series({name: [math.log10(max(v, FLOOR)) for v in row] for name, row in lost.items()}),
        "longest response over shortest",
        f"log10 of the points of reward lost (less than {FLOOR:g}: drawn there)",
        zero=False, x_names=[f"{spread:,}" for spread in SPREADS], width=640, height=340,
    )  # fmt: skip
    return [Plot("laboratory distortion", distortion), Plot("laboratory negligible", negligible)]


OWN_LENGTHS = (4, 32, 256, 1024, 8192, 32768)
OWN_REGIME = Regime(updates=16, step=0.3, jitter=0.005)
GAIN, MOST = 0.8, 200


def rollouts_needed(rule: Objective) -> list[str]:
    """Rollouts until a length has 80 % of its gain, where every length has a parameter of its own."""
    own = np.eye(len(OWN_LENGTHS))
    kinds = [Kind(L, laboratory.near(0.7), features=tuple(row)) for L, row in zip(OWN_LENGTHS, own, strict=True)]
    problem, theta = Problem(kinds), np.zeros(len(kinds))
    banded = laboratory.at_clip_rate(problem, rule, theta, OWN_REGIME, RATE)
    start, best = problem.rewards(theta), problem.rewards(problem.optimum())
    needed = np.full(len(kinds), np.inf)
    for rollout in range(1, MOST + 1):
        theta = laboratory.run(problem, banded, theta, OWN_REGIME).theta
        there = (problem.rewards(theta) - start) / (best - start) >= GAIN
        needed = np.minimum(needed, np.where(there, rollout, np.inf))
        if there.all():
            break
    return [f"{n:.0f}" if np.isfinite(n) else f"over {MOST}" for n in needed]


# --- clip rates by length ---------------------------------------------------------------------------------------------

SIGMA = 0.02
CLIP_LENGTHS = (8, 32, 128, 512, 2048, 8192, 32768)
TOKENS_AT_ONCE = 2**21
LEARNT = "fspo, learnt band"


def rates(names: list[str], responses: int, seed: int = 0) -> dict[str, list[float]]:
    """The share of the gradient that is removed for either sign of the advantage, by method and length."""
    objectives = {name: fspo.objectives.get(name, **PARAMETERS.get(name, {})) for name in names}
    objectives[LEARNT] = fspo.objectives.get("fspo", clip_rate=0.1, drift="bounded")
    table: dict[str, list[float]] = {name: [] for name in objectives}
    generator = torch.Generator().manual_seed(seed)
    for _ in range(100):  # the adaptive band learns from log-ratios of responses of all lengths
        L = torch.tensor(CLIP_LENGTHS)[torch.randint(len(CLIP_LENGTHS), (512,), generator=generator)].double()
        noise = torch.randn(512, generator=generator, dtype=torch.float64)
        objectives[LEARNT].observe(
            SIGMA * L.sqrt() * noise - SIGMA**2 / 2 * L, L, torch.tensor([1.0, -1.0]).repeat(256)
        )
    for length in CLIP_LENGTHS:
        print(f"  {length:,} tokens", file=sys.stderr, flush=True)
        rows = min(responses, max(1, TOKENS_AT_ONCE // length))
        lost = dict.fromkeys(table, 0.0)
        for _ in range(responses // rows):
            logprobs = SIGMA * torch.randn(rows, length, generator=generator) - SIGMA**2 / 2
            old, mask = torch.zeros_like(logprobs), torch.ones_like(logprobs, dtype=torch.bool)
            for name, objective in objectives.items():
                taken = sum(1 - objective(logprobs, old, torch.full((rows,), s), mask).accepted for s in (1.0, -1.0))
                lost[name] += float(torch.as_tensor(taken).clamp(max=1).sum())
        for name in table:
            table[name].append(lost[name] / (responses // rows * rows))
    return table


# The drift is given: estimated from a batch of one long response it would be the mean of that response.
PARAMETERS: dict[str, dict] = {
    "fspo": {"drift": -(SIGMA**2) / 2, "c_low": 0.03, "c_high": 0.03},
}


def clip_figures(table: dict[str, list[float]]) -> list[Plot]:
    """Two figures: the clip rate by length, and what it comes from, the log-ratios with the band of each method."""
    shown = [(name, fspo.objectives.get_class(name).colour) for name in fspo.objectives.LENGTH_LAWS]
    lines = [spaced(LABELS[name], table[name], colour) for name, colour in shown]
    rates = charts.line(
        "Clip rate by answer length", f"Simulated log-ratios with sigma = {SIGMA}: "
        "the fixed range clips long answers, GSPO's range on S / L short ones, and FSPO's band all lengths alike.",
        lines, "tokens of an answer", "clip rate", top=1.0, percent_axis=True,
        x_names=[f"{length:,}" for length in CLIP_LENGTHS], width=720, height=300,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    L = torch.randint(1, 2001, (600,), generator=generator).double()
    S = SIGMA * L.sqrt() * torch.randn(600, generator=generator, dtype=torch.float64) - SIGMA**2 / 2 * L
    grid = torch.arange(0, 2001, 10).double().clamp(min=1)
    edges = []
    for name, colour in shown:
        band = fspo.objectives.get(name, **PARAMETERS.get(name, {})).band(grid, Totals(1, 1, -(SIGMA**2) / 2))
        assert band is not None
        for k, edge in enumerate((band.centre - band.below, band.centre + band.above)):
            y = torch.as_tensor(edge).expand_as(grid).tolist()
            edges.append(
                charts.Series("" if k else LABELS[name], grid.tolist(), y, colour=colour, cut_off=name != "fspo")
            )
    spread = charts.line(
        "Log-ratio S by answer length", "Each dot is an answer. Its log-ratio S is a sum of L small terms, so that its "
        "spread grows like sqrt(L). An answer outside a method's two lines is clipped.",
        [charts.Series("answers", L.tolist(), S.tolist(), colour=1, cloud=True), *edges], "tokens of an answer, L",
        "log-ratio S",
    )  # fmt: skip
    return [Plot("clip by length", rates), Plot("bands", spread)]


LABELS = {"fspo": "FSPO: mu L ± c sqrt(L)", "gspo": "GSPO: a range on S / L", "rloo": "fixed range on exp(S)"}


def clip_rates(responses: int) -> dict[str, list[float]]:
    """Print the table of clip rates."""
    print(f"clip rate by response length: {responses:,} responses per length, sigma = {SIGMA}\n", flush=True)
    table = rates(fspo.objectives.names(), responses)
    print(f"{'':>17}" + "".join(f"{L:>8,}" for L in CLIP_LENGTHS) + "   flatness")
    for name, row in table.items():
        print(f"{name:>17}" + "".join(f"{rate:>8.3f}" for rate in row) + f"{max(row) - min(row):>11.3f}")
    print(f"\n{LEARNT}: shown after 100 updates of 512 responses; its wanted clip rate is 0.1\n")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--figures", type=Path, help="write the figures into this folder")
    parser.add_argument("--responses", type=int, default=1024, help="responses per length, for the clip rates")
    arguments = parser.parse_args()
    folder = arguments.figures
    start = time.perf_counter()
    drawn = clip_figures(clip_rates(arguments.responses))

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
            for graded, deviation, jitter in CASES.values():
                regime = replace(REGIME, deviation=deviation, jitter=jitter)
                lost_by = points_lost(problem_of(SPREAD, graded, conflict=conflict), rule, regime)
                cells.append(f"{lost_by.bias:.2f} + {lost_by.noise / 1000:.3f}")
            rows.append((name, cells))
        table("rule", CASES, rows)

    print(f"Rollouts to {GAIN:.0%} of the gain by length, one parameter per length, step {OWN_REGIME.step}\n")
    table("rule", [f"{L:,}" for L in OWN_LENGTHS], ((name, rollouts_needed(rule)) for name, rule in RULES.items()))

    if folder:
        for path in write_svg(drawn + figures(problem, weights, lost), folder):
            print(f"figure: {path}")
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
