"""Compare two runs of the same suite, cell by cell.

    python benchmarks/again.py SUITE FIRST SECOND

FIRST and SECOND are results files (or their folders). Cells are matched by their whole configuration. Printed are the
number of cells with the same accuracy at every evaluation, and the number of means of the second run that lie inside
the intervals of the first.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def main() -> None:
    from fspo.comparisons.plan import Plan
    from fspo.comparisons.seed_statistics import summary
    from fspo.comparisons.store import read
    from fspo.comparisons.suite import load
    from fspo.comparisons.suite_results import SuiteResults

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite")
    parser.add_argument("files", nargs=2, type=Path)
    given = parser.parse_args()
    suite = load(given.suite)
    plan = Plan(suite)
    first, second = (plan.finished(read(p / "results.parquet" if p.is_dir() else p)) for p in given.files)
    old = {row["key"]: row for row in first}
    both = [(old[row["key"]], row) for row in second if row["key"] in old]
    same = sum(a["eval_accuracy"] == b["eval_accuracy"] for a, b in both)
    codes = [", ".join(sorted({row["commit"][:10] for row in rows})) for rows in zip(*both, strict=True)]
    print(f"cells in both: {len(both)}, of code {' and '.join(codes)}")
    print(f"with the same accuracy at every evaluation: {same}")
    groups = {(g.task, g.setting, g.label): g for g in SuiteResults([a for a, _ in both], suite).groups}
    inside = total = 0
    for group in SuiteResults([b for _, b in both], suite).groups:
        mine, theirs = summary(group).final, summary(groups[group.task, group.setting, group.label]).final
        if mine is not None and theirs is not None and theirs.low is not None and theirs.high is not None:
            total += 1
            inside += theirs.low <= mine.value <= theirs.high
    print(f"means of the second run inside the intervals of the first: {inside} of {total}")


if __name__ == "__main__":
    main()
