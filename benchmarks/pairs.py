"""Two methods of a stored comparison, seed by seed: the table of a suite has the pairs with its reference only.

python benchmarks/pairs.py tight results/tight 'fspo_root 0.03' 'gspo 3e-3'
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fspo.comparisons.seed_statistics import improvement
from fspo.comparisons.store import read
from fspo.comparisons.suite import load
from fspo.comparisons.suite_results import SuiteResults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite")
    parser.add_argument("results", type=Path, help="the folder of its results")
    parser.add_argument("one")
    parser.add_argument("other")
    given = parser.parse_args()
    found = SuiteResults(read(given.results / "results.parquet"), load(given.suite))
    for setting in found.setting_names:
        better = improvement(found.of(given.one, setting), found.of(given.other, setting))
        if better is None or better.difference.low is None or better.difference.high is None:
            continue
        value, low, high = (100 * x for x in (better.difference.value, better.difference.low, better.difference.high))
        won = f"ahead in {better.share * better.pairs:g} of {better.pairs} pairs"
        print(f"{setting}: {given.one} - {given.other} {value:+.1f} points ({low:+.1f} to {high:+.1f}), {won}")


if __name__ == "__main__":
    main()
