"""Clip rate by length of every method on simulated log-ratios: independent and AR(1) Gaussian tokens.

    python benchmarks/simulate.py                  # 2 million responses of 8 to 32,768 tokens

The sum of L Gaussian tokens is Gaussian, so S is drawn directly, with the exact variance of the sum. Objectives that
look at tokens (PPO and its kin) clip a share of tokens that does not depend on L, and are left out.
"""

from __future__ import annotations

import argparse
import math

import numpy as np

import fspo

SIGMA = 0.02


def ar1_variance(L: np.ndarray, phi: float) -> np.ndarray:
    """Var(sum of L steps) of a stationary AR(1) process of unit variance."""
    return L * (1 + phi) / (1 - phi) - 2 * phi * (1 - phi**L) / (1 - phi) ** 2


def simulate(n: int, phi: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """S and L of n responses; L is log-uniform from 8 to 32,768, and the drift is that of Gaussian log-ratios."""
    rng = np.random.default_rng(seed)
    L = np.exp(rng.uniform(math.log(8), math.log(32768), n)).round()
    return -(SIGMA**2) / 2 * L + SIGMA * np.sqrt(ar1_variance(L, phi)) * rng.standard_normal(n), L


def reports(S: np.ndarray, L: np.ndarray, clip_rate: float = 0.1) -> dict[str, fspo.fairness.FairnessReport]:
    """Fairness of the sequence-level rules: FSPO calibrated on half of the data and measured on the other half."""
    half = len(S) // 2
    band = fspo.fairness.calibrate(S[:half], L[:half], clip_rate, drift="kl")
    flat = fspo.fairness.calibrate(S[:half], L[:half], clip_rate, drift="zero")
    S, L = S[half:], L[half:]
    root = np.sqrt(L)

    def inside(x: np.ndarray, low: np.ndarray | float, high: np.ndarray | float) -> np.ndarray:
        return ((x >= low) & (x <= high)).astype(float)

    accepted = {
        "fspo, kl drift": inside(S, band.mu * L - band.c_low * root, band.mu * L + band.c_high * root),
        "fspo, zero drift": inside(S, -flat.c_low * root, flat.c_high * root),
        "rloo (w in 0.8–1.2)": inside(S, math.log(0.8), math.log(1.2)),
        "gspo (3e-4, 4e-4)": inside(S / L, math.log1p(-3e-4), math.log1p(4e-4)),
    }
    return {name: fspo.fairness.measure(L, a) for name, a in accepted.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--responses", type=int, default=2_000_000)
    arguments = parser.parse_args()
    for phi in (0.0, 0.2, 0.5):
        S, L = simulate(arguments.responses, phi)
        law = fspo.fairness.scaling_law(S, L)
        kind = "independent tokens" if not phi else f"AR(1) tokens, phi = {phi}"
        print(f"\n{kind}: H = {law.exponent:.4f} ({law.interval[0]:.4f}–{law.interval[1]:.4f})")
        table = reports(S, L)
        labels = [b.label for b in next(iter(table.values())).bins]
        print(f"{'clip rate by length':>20} " + " ".join(f"{x:>11}" for x in labels) + "  flatness     LRE")
        for name, report in table.items():
            rates = " ".join(f"{b.clip_rate:>11.4f}" for b in report.bins)
            print(f"{name:>20} {rates}  {report.flatness:>8.4f}  {report.lre:>6.4f}")


if __name__ == "__main__":
    main()
