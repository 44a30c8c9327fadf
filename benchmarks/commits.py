"""Two commits against each other: digits and speed of training, and an audit of 10 million rows.

    git worktree add --detach ../other COMMIT
    python benchmarks/commits.py --other ../other/src [--repeats 5] [--rows 10000000] [--only digits]

digits  Each cell of `tests/compare/same_digits.yaml`, trained by both sides at the same time, with one thread and one
        instruction set, from a warm start that each makes itself: metrics, evaluations and records, column by column.
demo    What `make demo` trains, with the default objective of each side and with `fspo` on both.
tiny, long  The workloads of `vs_trl.py`, every row computed or only those with an advantage.
audit   Processor seconds of an audit.

Speeds are tokens per second of the wall clock, this tree over the other: medians of the repeats' ratios with their
range. Above 1 this tree is faster. The sides take turns, each repeat is a process of its own, and its first step is not
counted.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from audit import write_answers
from fspo.comparisons.results import read
from fspo.comparisons.run import ONE_INSTRUCTION_SET, ONE_THREAD

ROOT = Path(__file__).resolve().parents[1]
GRPO = ["objective.name=grpo", "advantage=grpo", "rollout.prompts=16", "rollout.group=8", "update.epochs=2"]
TINY = [*GRPO, "model.path=tiny:4x128", "warmup=null", "task.name=count", "task.n_min=4", "task.n_max=40",
        "task.graded=true", "rollout.max_new_tokens=128", "update.minibatches=2"]  # fmt: skip
LONG = [*GRPO, "model.path=tiny:2x64", "warmup.solved=0.75", "warmup.batch=16", "task.name=walk", "task.down=true",
        "rollout.max_new_tokens=400", "update.minibatches=2"]  # fmt: skip
RUNS = {
    "demo": [],
    "demo, fspo": ["objective.name=fspo"],
    "tiny": TINY,
    "tiny, all rows": [*TINY, "update.all_rows=true"],
    "long": LONG,
    "long, all rows": [*LONG, "update.all_rows=true"],
}
Sides = dict[str, Path]
REFUSED = 2  # exit code of a command that refuses its settings


def command(source: Path, arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    return [sys.executable, "-m", "fspo", *arguments], os.environ | {"PYTHONPATH": str(source.resolve())}


def measured(source: Path, arguments: list[str]) -> float:
    """Processor seconds of one command of a side."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    line, environment = command(source, arguments)
    subprocess.run(line, env=environment, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def speed(folder: Path) -> float:
    """Tokens per second of the steps after the first."""
    lines = [json.loads(line) for line in (folder / "timings.jsonl").read_text().splitlines()]
    return statistics.median(line["tokens_per_second"] for line in lines[1:])


def say(text: str) -> None:
    print(f"{time.strftime('%X')} {text}", file=sys.stderr, flush=True)


def shown(name: str, ratios: list[float]) -> None:
    print(f"{name}: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})", flush=True)


def compare_speed(name: str, sides: Sides, repeats: int, scratch: Path) -> None:
    speeds: dict[str, list[float]] = {side: [] for side in sides}
    for k in range(repeats + 1):  # the first makes the warm start
        for side, source in sides.items():
            say(f"{name} {k}/{repeats} {side}")
            folder = scratch / f"{name}-{side}-{k}"
            measured(source, ["train", *RUNS[name], "steps=5", "eval.prompts=16", "--out", str(folder)])
            speeds[side].append(speed(folder))
    shown(f"{name}, speed", [a / b for a, b in zip(speeds["this"][1:], speeds["other"][1:], strict=True)])


def compare_audits(sides: Sides, repeats: int, rows: int, scratch: Path) -> None:
    table = scratch / "rows.parquet"
    write_answers(table, rows)
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for k in range(repeats):
        for side, source in sides.items():
            say(f"audit {k}/{repeats} {side}")
            seconds[side].append(measured(source, ["audit", str(table)]))
    shown("audit, cpu", [b / a for a, b in zip(seconds["this"], seconds["other"], strict=True)])


def lines(folder: Path, name: str) -> dict[str, list[Any]]:
    """The lines of a file of a run, key by key."""
    read_lines = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    return {f"{name}.{key}": [line.get(key) for line in read_lines] for key in read_lines[0]}


def outcome(folder: Path) -> dict[str, list[Any]]:
    """All that a run measured, by column."""
    records = pl.read_parquet(sorted((folder / "records").glob("*.parquet")))
    columns = {f"records.{name}": records[name].to_list() for name in records.columns}
    return lines(folder, "metrics") | lines(folder, "evaluations") | columns


def text(values: list[Any]) -> str:
    """By which values are compared: every digit, NaN equal to itself, whatever the order of keys."""
    return json.dumps(values, sort_keys=True)


def compare_digits(sides: Sides, scratch: Path) -> None:
    same = cells = 0
    for suite, keys in yaml.safe_load((ROOT / "tests/compare/same_digits.yaml").read_text()).items():
        stored = {row["key"]: row for row in read(ROOT / "results" / suite)}
        for key in keys:
            row = stored[key]
            config = json.loads(row["config"]) | {"processes": 1}
            config["model"]["threads"] = 1
            file = scratch / f"{key}.yaml"
            file.write_text(yaml.safe_dump(config))
            say(f"{suite}, {row['task']}, {row['method']}")
            running = []
            for side, source in sides.items():
                out = str(scratch / side / key)
                line, environment = command(source, ["train", str(file), "--no-report", "--out", out])
                environment |= ONE_THREAD | ONE_INSTRUCTION_SET
                running.append(subprocess.Popen(line, env=environment, stdout=subprocess.DEVNULL))
            codes = [process.wait() for process in running]
            if REFUSED in codes:  # a setting that one of the commits does not have
                print(f"{key}: refused by one side", flush=True)
                continue
            if any(codes):
                raise RuntimeError(f"a side failed on {file.read_text()}")
            this, other = (outcome(scratch / side / key) for side in sides)
            common = this.keys() & other.keys()
            differing = [name for name in sorted(common) if text(this[name]) != text(other[name])]
            print(f"{key}: {', '.join(differing) or f'the same in {len(common)} columns'}", flush=True)
            same, cells = same + (not differing), cells + 1
    print(f"{same} of {cells} cells are the same, to the last digit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, required=True, help="the folder src of the other commit")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--only", nargs="+", choices=["digits", *RUNS, "audit"], help="measure these parts")
    given = parser.parse_args()
    sides = {"this": ROOT / "src", "other": given.other}
    parts = given.only or ["digits", *RUNS, "audit"]
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        if "digits" in parts:
            compare_digits(sides, scratch)
        for name in filter(parts.__contains__, RUNS):
            compare_speed(name, sides, given.repeats, scratch)
        if "audit" in parts:
            compare_audits(sides, given.repeats, given.rows, scratch)


if __name__ == "__main__":
    main()
