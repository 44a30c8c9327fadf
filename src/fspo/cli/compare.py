"""The command `fspo compare`."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fspo.cli import Terminal
from fspo.text import visible

if TYPE_CHECKING:
    from fspo.comparisons.plan import Cell, Plan
    from fspo.comparisons.store import Store

console = Terminal()


def compare(
    suite: Annotated[
        str | None, typer.Argument(help="a suite of the list, or a YAML file; without it the list is shown")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="folder of the results; default: results/SUITE")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="cells at a time; default: one per core")] = None,
    minutes: Annotated[float | None, typer.Option(min=0, help="start no new cell after this time")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="number of test seeds; default: the suite's")] = None,
    svg: Annotated[Path | None, typer.Option(help="also write every figure as an SVG file into this folder")] = None,
    pairs: Annotated[str | None, typer.Option(metavar="A,B", help="only compare two methods of the results")] = None,
    against: Annotated[
        Path | None, typer.Option(help="only compare the results, or those of --rerun, with these other results")
    ] = None,
    rerun: Annotated[
        str | None,
        typer.Option(metavar="N|FILE", help="run N stored cells, or those a YAML file lists, again; compare digits"),
    ] = None,
    save: Annotated[Path | None, typer.Option(help="keep the rows of --rerun in this results file")] = None,
    ranges: Annotated[bool, typer.Option(help="find the ranges of the tuned methods, for the suite's file")] = False,
) -> None:
    """Compare methods over tasks, settings and seeds, each with the same data, budget, start and tuning.

    Finished cells are kept: the same command goes on with what is missing. If nothing is missing, it writes the table
    and the page again.

    [dim]fspo compare[/]                                the list of suites
    [dim]fspo compare smoke[/]                          a test of a few seconds
    [dim]fspo compare suite.yaml --out results/mine --minutes 60[/]
    [dim]fspo compare long --rerun 20[/]                does this machine give the stored digits?
    [dim]fspo compare long --pairs fspo,gspo[/]
    """
    from fspo.comparisons import suite as suites
    from fspo.comparisons.plan import Plan
    from fspo.comparisons.store import Store, read
    from fspo.runs import locked

    if suite is None:
        table = Table("suite", "question")
        for name in suites.names():
            table.add_row(name, suites.load(name).title)
        console.print(table)
        return
    asked = suites.load(suite)
    if seeds is not None:
        asked = asked.model_copy(update={"seeds": seeds})
    plan = Plan(asked)
    folder = out or Path("results") / asked.name
    if ranges:
        _print_ranges(plan)
    elif rerun is not None:
        _rerun(plan, read(against or folder), rerun, save)
    elif against is not None:
        _print_agreement(plan, read(folder), read(against))
    elif pairs is not None:
        _print_pairs(plan, read(folder), pairs)
    else:
        for setting, (label, method) in ((s, item) for s in asked.settings for item in asked.methods.items()):
            if method.tuned and not asked.trials(setting, label):
                raise ValueError(f"{label} has no ranges in {setting}: run fspo compare {suite} --ranges first")
        again = "the same command goes on with what is missing"
        with locked(folder):
            store = Store(folder / "results.parquet")
            try:
                _run_missing(plan, store, folder, workers or _cores(), minutes)
            except KeyboardInterrupt:
                done = len(plan.finished(store.rows))
                console.say(f"stopped; {done} of {plan.total} cells are kept, and {again}")
                raise typer.Exit(130) from None
            rows = plan.finished(store.rows)
            store.put_first(rows)
            _publish(plan, rows, folder, svg)
        if len(rows) < plan.total:
            console.say(f"{len(rows)} of {plan.total} cells are done, and {again}")


def _run_missing(plan: Plan, store: Store, folder: Path, workers: int, minutes: float | None) -> None:
    """Run the cells that the store lacks."""
    from fspo.comparisons.run import CellError, LocalExecutor, SuiteProgress, run
    from fspo.files import replace_file

    until = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    done = len(plan.finished(store.rows))
    if done == plan.total:
        return
    console.say(f"{plan.suite.name}: {done} of {plan.total} cells are done, {workers} at a time")
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)  # left behind by a command that was killed
    executor = LocalExecutor(workers, work.resolve())
    try:
        run(plan, store, executor, SuiteProgress(console.say, done, plan.total, workers), until)
    except CellError as error:
        details = replace_file(folder / "error.txt", f"{error}\n\n{error.trace}")
        raise ValueError(
            f"{error}; {len(plan.finished(store.rows))} of {plan.total} cells are kept, the same command goes on, and "
            f"{details} has the details"
        ) from None
    finally:
        executor.close()
    shutil.rmtree(work, ignore_errors=True)


def _cores() -> int:
    """Physical cores that this process may use."""
    import psutil

    from fspo.runtime import usable_cores

    return max(1, min(usable_cores(), psutil.cpu_count(logical=False) or 1))


def _publish(plan: Plan, rows: list[dict[str, Any]], folder: Path, svg: Path | None) -> None:
    """Write the table, the page and the figures of the finished cells."""
    if not any(row["phase"] == "test" for row in rows):
        return

    from fspo.comparisons import figures, tables
    from fspo.files import replace_file
    from fspo.pages.document import write_svg

    text = tables.text(rows, plan.suite)
    replace_file(folder / "table.md", text)
    print(visible(text))
    written = figures.write(rows, plan.suite, folder / "report.html")
    console.say(f"results: {folder / 'results.parquet'}, report: {written}")
    if svg is not None:
        console.say(f"{len(write_svg(figures.plots(rows, plan.suite), svg))} figures: {svg}")


# --- questions to results that exist ----------------------------------------------------------------------------------


def _rerun(plan: Plan, before: list[dict[str, Any]], asked: str, save: Path | None) -> None:
    """Run stored cells again in this process, and print the outcome columns that differ."""
    from fspo.comparisons.run import rerun
    from fspo.comparisons.store import Store
    from fspo.runtime import quiet

    quiet()
    stored = {row["key"]: row for row in before}
    cells = _chosen([cell for cell in plan.tuning + plan.test if cell.key in stored], asked, plan.suite.name)
    same = 0
    with tempfile.TemporaryDirectory() as scratch:
        store = Store(save or Path(scratch) / "results.parquet")
        console.say(f"{len(cells)} cells, one after the other; a warm start that is not in the cache is made first")
        for cell, differing in rerun(plan, cells, stored, store):
            same += not differing
            console.say(f"{cell}: {'; '.join(differing) or 'same'}")
    console.say(f"{same} of {len(cells)} cells are the same in every outcome column, to the last digit")


def _chosen(cells: list[Cell], asked: str, suite: str) -> list[Cell]:
    """As many cells as asked, drawn at random from the tests, or those that the file lists under the suite's name."""
    from fspo.config import parse

    if asked.isdigit():
        tests = [cell for cell in cells if cell.phase == "test"]
        return random.Random(0).sample(tests, min(int(asked), len(tests)))
    by_key = {cell.key: cell for cell in cells}
    keys = parse(asked).get(suite, [])
    missing = [key for key in keys if key not in by_key]
    if missing or not keys:
        raise ValueError(
            f"{asked} lists {', '.join(missing) or 'no cell'} under {suite}: the results have no such cell"
        )
    return [by_key[key] for key in keys]


def _print_agreement(plan: Plan, ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    """How two runs of the same suite agree, cell by cell and in their means."""
    from fspo.comparisons.statistics import SuiteResults
    from fspo.comparisons.store import differences

    other = {row["key"]: row for row in plan.finished(theirs)}
    both = [(row, other[row["key"]]) for row in plan.finished(ours) if row["key"] in other]
    if not both:
        raise ValueError(f"the two results have no cell of the suite {plan.suite.name} in common")
    same = sum(not differences(a, b) for a, b in both)
    codes = [", ".join(sorted({row["commit"][:10] for row in rows})) for rows in zip(*both, strict=True)]
    console.say(f"cells in both: {len(both)}, of code {' and '.join(codes)}")
    console.say(f"the same in every outcome column, to the last digit: {same}")
    first, second = (SuiteResults(rows, plan.suite).groups for rows in zip(*both, strict=True))
    inside = []
    for a, b in ((a.mean("final"), b.mean("final")) for a, b in zip(first, second, strict=True)):
        if a is not None and b is not None and b.low is not None and b.high is not None:
            inside.append(b.low <= a.value <= b.high)
    console.say(f"mean final accuracies inside the other's intervals: {sum(inside)} of {len(inside)}")


def _print_pairs(plan: Plan, rows: list[dict[str, Any]], asked: str) -> None:
    from fspo.comparisons.statistics import SuiteResults
    from fspo.comparisons.tables import pairs

    one, _, other = (part.strip() for part in asked.partition(","))
    print(visible(pairs(SuiteResults(plan.finished(rows), plan.suite), one, other).markdown()))


def _print_ranges(plan: Plan) -> None:
    """The suite's `ranges` as YAML."""
    from fspo.comparisons.run import ranges
    from fspo.files import json_text

    print("ranges:")
    for setting in plan.suite.settings:
        console.say(f"{setting}: a short run on {next(iter(plan.suite.tasks))}")
        print(f"  {json_text(setting)}:")
        for method, trials in ranges(plan, setting).items():
            print(f"    {json_text(method)}: {json_text(trials)}")
