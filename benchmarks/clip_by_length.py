"""The clip rate of every method by response length, computed by the objectives on simulated token log-ratios.

    python benchmarks/clip_by_length.py --figures docs/images

Token log-ratios are independent Gaussians with sigma = 0.02 and the drift of an importance ratio, -sigma^2 / 2. A
response counts as clipped if the objective removes its gradient for either sign of the advantage; for objectives that
clip tokens or change weights softly, the share of the gradient that they remove is counted.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import fspo
from fspo.objectives import Totals
from fspo.pages.charts import Points, Series, line, scatter
from fspo.pages.document import Plot
from fspo.pages.images import write_svg
from fspo.report.bands import LAWS

SIGMA = 0.02
LENGTHS = (8, 32, 128, 512, 2048, 8192, 32768)
TOKENS_AT_ONCE = 2**21


def rates(names: list[str], responses: int, seed: int = 0) -> dict[str, list[float]]:
    """The share of the gradient that is removed for either sign of the advantage, by method and length."""
    table: dict[str, list[float]] = {name: [] for name in names}
    objectives = {name: fspo.objectives.get(name, **PARAMETERS.get(name, {})) for name in names}
    generator = torch.Generator().manual_seed(seed)
    for _ in range(100):  # the adaptive band learns from log-ratios of responses of all lengths
        L = torch.tensor(LENGTHS)[torch.randint(len(LENGTHS), (512,), generator=generator)].double()
        noise = torch.randn(512, generator=generator, dtype=torch.float64)
        objectives["fspo_adaptive"].observe(SIGMA * L.sqrt() * noise - SIGMA**2 / 2 * L, L)
    for length in LENGTHS:
        rows = min(responses, max(1, TOKENS_AT_ONCE // length))
        lost = dict.fromkeys(names, 0.0)
        for _ in range(responses // rows):
            logprobs = SIGMA * torch.randn(rows, length, generator=generator) - SIGMA**2 / 2
            old, mask = torch.zeros_like(logprobs), torch.ones_like(logprobs, dtype=torch.bool)
            for name, objective in objectives.items():
                taken = sum(1 - objective(logprobs, old, torch.full((rows,), s), mask).accepted for s in (1.0, -1.0))
                lost[name] += float(torch.as_tensor(taken).clamp(max=1).sum())
        for name in names:
            table[name].append(lost[name] / (responses // rows * rows))
    return table


# The drift is given: estimated from a batch of one long response it would be the mean of that response.
PARAMETERS: dict[str, dict] = {
    "fspo": {"drift": -(SIGMA**2) / 2, "c_low": 0.03, "c_high": 0.03},
    "fspo_studentized": {"drift": -(SIGMA**2) / 2, "c_low": 1.5, "c_high": 1.5},
}


def figures(table: dict[str, list[float]], folder: Path) -> list[Path]:
    """Two SVG files: the clip rate by length, and what it comes from, the log-ratios with the band of each method."""
    shown = [(name, colour) for name, (_, colour) in LAWS.items()]
    lines = [Series(LABELS[name], LENGTHS, table[name], colour=colour, dots=True) for name, colour in shown]
    rates = line(
        "Clip rate by answer length", f"Simulated log-ratios with sigma = {SIGMA}: "
        "the fixed range clips long answers, GSPO's range on S / L short ones, and FSPO's band all lengths alike.",
        lines, "tokens of an answer", "clip rate", top=1.0, percent_axis=True, log_x=True, width=720, height=300,
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
            edges.append(Series("" if k else LABELS[name], grid.tolist(), y, colour=colour))
    spread = scatter(
        "Log-ratio S by answer length", "Each dot is an answer. Its log-ratio S is a sum of L small terms, so that its "
        "spread grows like sqrt(L). An answer outside a method's two lines is clipped.",
        [Points("answers", L.tolist(), S.tolist(), colour=1)], edges[:2], edges[2:], "tokens of an answer, L",
        "log-ratio S",
    )  # fmt: skip
    return write_svg([Plot("clip by length", rates), Plot("bands", spread)], folder)


LABELS = {"fspo": "FSPO: mu L ± c sqrt(L)", "gspo": "GSPO: a range on S / L", "rloo": "fixed range on exp(S)"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--figures", type=Path, help="write clip-by-length.svg and bands.svg into this folder")
    parser.add_argument("--responses", type=int, default=1024, help="responses per length")
    arguments = parser.parse_args()
    table = rates(fspo.objectives.names(), arguments.responses)
    print(f"clip rate by response length: {arguments.responses:,} responses per length, sigma = {SIGMA}\n")
    print(f"{'':>17}" + "".join(f"{L:>8,}" for L in LENGTHS) + "   flatness")
    for name, row in table.items():
        print(f"{name:>17}" + "".join(f"{rate:>8.3f}" for rate in row) + f"{max(row) - min(row):>11.3f}")
    print("\nfspo_adaptive is shown after 100 updates of 512 responses; its wanted clip rate is 0.1")
    if arguments.figures:
        print("figures:", *figures(table, arguments.figures))


if __name__ == "__main__":
    main()
