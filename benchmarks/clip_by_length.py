"""The clip rate of every method by response length, computed by the objectives on simulated token log-ratios.

    python benchmarks/clip_by_length.py --figure out/clip_by_length.png

Token log-ratios are independent Gaussians with sigma = 0.02 and the drift of an importance ratio, -sigma^2 / 2. A
response counts as clipped if the objective removes its gradient for either sign of the advantage; for objectives that
clip tokens or change weights softly, the share of the gradient that they remove is counted.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import fspo

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


def figure(table: dict[str, list[float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = {"fspo": "C2", "gspo": "C0", "rloo": "C3", "grpo": "C1", "fspo_adaptive": "C8", "gmpo": "C4"}
    axes = plt.figure(figsize=(7.2, 4.2), layout="constrained").subplots()
    for name, colour in shown.items():
        axes.plot(LENGTHS, table[name], "o-", color=colour, label=name, lw=2.5 if name == "fspo" else 1.4, ms=4)
    axes.set(xscale="log", ylim=(-0.02, 1.02), xlabel="response length, tokens", ylabel="clip rate")
    axes.set_title(f"Clip rate by response length, sigma = {SIGMA}, c = 0.03 for FSPO", fontsize=11)
    axes.set_xticks(LENGTHS, [f"{L:,}" for L in LENGTHS])
    axes.minorticks_off()
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, ncols=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    axes.figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--figure", type=Path, help="save the figure here")
    parser.add_argument("--responses", type=int, default=1024, help="responses per length")
    arguments = parser.parse_args()
    table = rates(fspo.objectives.names(), arguments.responses)
    print(f"clip rate by response length: {arguments.responses:,} responses per length, sigma = {SIGMA}\n")
    print(f"{'':>17}" + "".join(f"{L:>8,}" for L in LENGTHS) + "   flatness")
    for name, row in table.items():
        print(f"{name:>17}" + "".join(f"{rate:>8.3f}" for rate in row) + f"{max(row) - min(row):>11.3f}")
    print("\nfspo_adaptive is shown after 100 updates of 512 responses; its wanted clip rate is 0.1")
    if arguments.figure:
        figure(table, arguments.figure)
        print(f"figure: {arguments.figure}")


if __name__ == "__main__":
    main()
