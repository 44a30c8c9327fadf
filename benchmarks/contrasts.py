"""What each choice in the length family changes, from the stored results of the suite `space`.

    python benchmarks/contrasts.py results/space

A contrast is the mean difference in final accuracy between members that differ in one choice alone, in points. Members
of one task and seed share a warm start and prompts, so their differences are averaged first; the interval is that of
every comparison here, over the (task, seed) pairs, of which there are as many as tasks times seeds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fspo.comparisons.seed_statistics import mean_of
from fspo.comparisons.store import read

Choice = float | str
Member = tuple[Choice, ...]
CHOICES = {"ratio": 0, "band": 1, "gain": 2, "advantage": 3}
CONTRASTS: list[tuple[str, str, Choice, Choice]] = [
    ("the group's deviation in the advantage", "advantage", "rloo", "grpo"),
    ("ratio exp(S / sqrt(L)) for exp(S)", "ratio", 0.0, 0.5),
    ("ratio exp(S / L) for exp(S / sqrt(L))", "ratio", 0.5, 1.0),
    ("ratio exp(S / L) for exp(S)", "ratio", 0.0, 1.0),
    ("band c L for c sqrt(L)", "band", 0.5, 1.0),
    ("gain 1 / sqrt(L) for 1", "gain", 0.0, -0.5),
]


def pairs(members: set[Member], choice: str, one: Choice, other: Choice) -> Iterator[tuple[Member, Member]]:
    """Members with `one` and with `other`, alike in all other choices."""
    at = CHOICES[choice]
    for member in members:
        changed = (*member[:at], other, *member[at + 1 :])
        if member[at] == one and changed in members:
            yield member, changed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="the folder of the suite `space`")
    rows = [row for row in read(parser.parse_args().results / "results.parquet") if row["phase"] == "test"]
    final: dict[tuple[str, str, int, Member], float] = {}
    for row in rows:
        objective = json.loads(row["objective"])
        exponents = (objective[f"{name}_exponent"] for name in ("ratio", "band", "gain"))
        final[row["setting"], row["task"], row["seed"], (*exponents, row["advantage"])] = row["final"]
    members = {key[3] for key in final}
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    print("| change | pairs | " + " | ".join(settings) + " |\n|---|---|" + "---|" * len(settings))
    for label, choice, one, other in CONTRASTS:
        found = list(pairs(members, choice, one, other))
        cells = []
        for setting in settings:
            blocks = [
                b for b in dict.fromkeys(key[1:3] for key in final) if all((setting, *b, m) in final for m in members)
            ]
            means = [
                100
                * float(np.mean([final[setting, *b, after] - final[setting, *b, before] for before, after in found]))
                for b in blocks
            ]
            mean = mean_of(means)
            cells.append("–" if mean is None else f"{mean.value:+.1f} ({mean.low:+.1f} to {mean.high:+.1f})")
        print(f"| {label} | {len(found)} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
