"""Do the audit's intervals and its band hold what they promise? Simulated files with known truth.

    python benchmarks/simulate.py [--files 300] [--sizes 30 60 300 3000] [--only jumps skewed]

Each process makes rows of S = mu L + sigma L^H Z with advantages of either sign, some of them with a few outliers. Of
every file: do the 95 % intervals of mu, sigma and H, of the band's exponent, and of the clip rate on fresh rows hold
the truth, and how much flatter or steeper over length is the recommended band, on fresh rows without outliers, than
the band from the same file without its outliers? A file about which the audit says "cannot tell" counts in no rate.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fspo
from fspo.audits.rules import Recommendation
from fspo.fairness.bins import cut

Array = NDArray[Any]
MU, SIGMA, RATE, FRESH = -3e-4, 0.02, 0.1, 100_000
PROCESSES = {
    "Gaussian": {},
    "H = 0.62": {"H": 0.62},
    "Student t, excess kurtosis 100": {"freedom": 4.06},
    "skewed (exponential)": {"skewed": True},
    "0.1 % shifted by -10": {"outliers": 0.001, "shift": -10.0},
    "1 % shifted by -10": {"outliers": 0.01, "shift": -10.0},
    "1 % shifted by +10": {"outliers": 0.01, "shift": 10.0},
    "1 % times 36": {"outliers": 0.01, "times": 36.0},
    "jumps of 3 in 1 % of the rows, by length": {"outliers": 0.01, "jump": 3.0},
    "mixture of sigma 0.01 and 0.02": {"mixed": True},
}


@dataclass(frozen=True)
class Process:
    """S = mu L + sigma L^H Z, and what is done to the share `outliers` of the rows."""

    H: float = 0.5
    freedom: float = 0.0  # of Student's t with variance 1; 0 is a Gaussian
    skewed: bool = False
    mixed: bool = False  # half of the rows have half the spread
    outliers: float = 0.0
    shift: float = 0.0
    times: float = 0.0  # S - mu L is so many times as large
    jump: float = 0.0  # jumps of either sign, in rows drawn with probability proportional to L

    @property
    def sigma(self) -> float:
        """The spread at one token; of a mixture, the root mean square."""
        return SIGMA * (0.625**0.5 if self.mixed else 1.0)

    def rows(self, n: int, seed: int) -> tuple[dict[str, Array], Array]:
        """The columns of a file, and which of its rows are outliers."""
        rng = np.random.default_rng(seed)
        L = np.exp(rng.uniform(np.log(8), np.log(4000), n)).round()
        Z = rng.standard_normal(n)
        if self.freedom:
            Z = rng.standard_t(self.freedom, n) * np.sqrt(1 - 2 / self.freedom)
        if self.skewed:
            Z = rng.exponential(1.0, n) - 1
        noise = SIGMA * L**self.H * Z * (np.where(rng.random(n) < 0.5, 0.5, 1.0) if self.mixed else 1.0)
        A, chance = rng.standard_normal(n), L / L.mean() if self.jump else np.ones(n)
        moved = rng.random(n) < self.outliers * chance
        noise = np.where(moved & (self.times > 0), self.times * noise, noise)
        noise = noise + moved * (self.shift + self.jump * rng.choice([-1, 1], n))
        return {"length": L.astype(int), "log_ratio": MU * L + noise, "advantage": A}, moved

    def fresh(self, seed: int) -> dict[str, Array]:
        """Rows without outliers."""
        columns, moved = self.rows(FRESH, 1_000_000 + seed)
        return {name: values[~moved] for name, values in columns.items()}


@dataclass(frozen=True)
class Judged:
    """What one file said: whether each interval holds the truth (None: cannot tell), and the band's flatness."""

    covers: dict[str, bool | None]
    exponent: float | None = None
    flatness: float | None = None
    clean: float | None = None  # flatness of the band from the file without its outliers


def judge(process: Process, n: int, seed: int, fresh: dict[str, Array]) -> Judged:
    columns, moved = process.rows(n, seed)
    result = fspo.audit(columns, clip_rate=RATE)
    covers: dict[str, bool | None] = dict.fromkeys(("mu", "sigma", "H", "exponent", "fresh rate"))
    law, band = result.law, result.recommendation
    if law is not None:
        covers["mu"] = law.mu_interval[0] <= MU <= law.mu_interval[1]
        covers["sigma"] = law.scale_interval[0] <= process.sigma <= law.scale_interval[1]
        covers["H"] = law.interval[0] <= process.H <= law.interval[1]
    if band is None:
        return Judged(covers)
    covers["exponent"] = band.exponent_interval[0] <= process.H <= band.exponent_interval[1]
    rates = clip_rates(band, fresh)
    if not moved.any():  # fresh rows are without outliers
        covers["fresh rate"] = band.fresh_interval[0] <= rates.mean() <= band.fresh_interval[1]
    clean: Recommendation | None = band
    if moved.any():
        clean = fspo.audit({name: values[~moved] for name, values in columns.items()}, clip_rate=RATE).recommendation
    flatness = None if clean is None else float(np.ptp(clip_rates(clean, fresh)))
    return Judged(covers, band.exponent, float(np.ptp(rates)), flatness)


def clip_rates(band: Recommendation, rows: dict[str, Array]) -> Array:
    """The clip rate of a band in each of 8 bins of length."""
    L, S, A = rows["length"].astype(float), rows["log_ratio"], rows["advantage"]
    z = (S - band.mu * L) / L**band.exponent
    clipped = np.where(A > 0, z > band.c_high, z < -band.c_low)
    bins = cut(L, 8)
    return np.asarray(bins.sum(clipped) / bins.sum())


def table(files: int, sizes: list[int], only: list[str]) -> Iterator[list[str]]:
    """One row per process and size: shares in %, and flatness in points. `only` are words in the processes' names."""
    for name, settings in PROCESSES.items():
        if only and not any(word in name for word in only):
            continue
        process = Process(**settings)  # type: ignore[arg-type]
        fresh = process.fresh(0)
        for n in sizes:
            judged = []
            for seed in range(files):
                print(f"{name}, {n} rows: file {seed + 1} of {files}", file=sys.stderr, flush=True)
                judged.append(judge(process, n, seed, fresh))
            cells = [name, str(n)]
            said: dict[str, list[bool]] = defaultdict(list)
            for one in judged:
                for key, inside in one.covers.items():
                    said[key] += [] if inside is None else [inside]
            for key in judged[0].covers:
                known = said[key]
                cells.append(f"{100 * np.mean(known):.0f}" if len(known) >= files / 5 else "cannot tell")
            pairs = np.array([(j.flatness, j.clean) for j in judged if j.flatness is not None and j.clean is not None])
            left = [j.exponent != 0.5 for j in judged if j.exponent is not None]
            cells.append(f"{100 * np.mean(left):.0f}" if left else "–")
            cells += [f"{100 * v:.1f}" for v in pairs.mean(0)] if len(pairs) else ["–", "–"]
            cells.append(f"{100 * np.quantile(np.abs(pairs[:, 0] - pairs[:, 1]), 0.95):.1f}" if len(pairs) else "–")
            yield cells


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", type=int, default=300)
    parser.add_argument("--sizes", type=int, nargs="+", default=[30, 60, 300, 3000])
    parser.add_argument("--only", nargs="+", default=[], help="words in the names of the wanted processes")
    args = parser.parse_args()
    head = [
        "process",
        "rows",
        "mu",
        "sigma",
        "H",
        "exponent",
        "fresh rate",
        "not 1/2, %",
        "flatness",
        "without outliers",
    ]
    print("| " + " | ".join([*head, "difference, 95 %"]) + " |")
    print("|" + "---|" * (len(head) + 1), flush=True)
    for cells in table(args.files, args.sizes, args.only):
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
