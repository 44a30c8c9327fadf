"""Run some cells of a stored comparison again, one after the other, and compare every figure of their rows.

    python benchmarks/rerun.py long results/long [--cells 20] [--task maze] [--draw 1]

The cells are drawn at random from the stored test cells, of all tasks or of one. Times, versions and the commit are not
compared; of any other column that differs, the largest relative difference is printed. Digits are those of a processor
and of a version of torch: on another machine, run the older code there first (`--save`), and compare with that.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

NOT_COMPARED = {"suite", "seconds", "cpu_seconds", "version", "commit", "torch"}


def main() -> None:
    from fspo.comparisons.cell import commit_of_package, run_cell
    from fspo.comparisons.plan import Plan
    from fspo.comparisons.store import Store, read
    from fspo.comparisons.suite import load
    from fspo.runtime import quiet

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite")
    parser.add_argument("results", type=Path, help="a results file, or its folder")
    parser.add_argument("--cells", type=int, default=20)
    parser.add_argument("--task", help="only cells of this task")
    parser.add_argument("--draw", type=int, default=0, help="seed of the draw")
    parser.add_argument("--save", type=Path, help="also keep the new rows in this results file")
    given = parser.parse_args()
    quiet()
    plan = Plan(load(given.suite))
    file = given.results / "results.parquet" if given.results.is_dir() else given.results
    stored = {row["key"]: row for row in read(file)}
    found = [cell for cell in plan.test if cell.key in stored and given.task in (None, cell.task)]
    cells = random.Random(given.draw).sample(found, min(given.cells, len(found)))
    same = 0
    with tempfile.TemporaryDirectory() as scratch:
        store = Store(given.save or Path(scratch) / "results.parquet")
        for cell in cells:
            warm = plan.warm[cell.warm] if cell.warm else None
            store.add(run_cell(cell, warm, None, commit_of_package()) | {"suite": plan.suite.name})
            differing = differences(stored[cell.key], store.rows[-1])
            same += not differing
            print(f"{cell}: {'; '.join(differing) or 'same'}", flush=True)
    print(f"{same} of {len(cells)} cells are the same in every column, to the last digit")


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """The columns that differ, with the largest relative difference of their numbers.

    A column that the stored row does not have, because it was added later, is not compared.
    """
    found = []
    for name in sorted(key for key, value in old.items() if value is not None and key not in NOT_COMPARED):
        a, b = numbers(old[name]), numbers(new[name])
        if a != b:
            pairs = [(x, y) for x, y in zip(a, b, strict=False) if isinstance(x, float) and isinstance(y, float)]
            size = max((abs(x - y) / (abs(x) or 1) for x, y in pairs), default=float("nan"))
            found.append(f"{name} differs by up to {size:.1e}" if len(a) == len(b) else f"{name} has another shape")
    return found


def numbers(value: Any) -> list[Any]:
    """A value, and all that it holds, as one list; numbers as floats, NaN as text so that it equals itself."""
    if isinstance(value, dict):
        return [item for key in value for item in [key, *numbers(value[key])]]
    if isinstance(value, list | tuple):
        return [item for part in value for item in numbers(part)]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return [float(value) if value == value else "nan"]
    return [value]


if __name__ == "__main__":
    main()
