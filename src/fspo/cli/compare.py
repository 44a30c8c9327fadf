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
    from fspo.comparisons.results import Store

console = Terminal()


def compare(
    suite: Annotated[
        str | None, typer.Argument(help="a suite of the list, or a YAML file; without it the list is shown")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="folder of the results; default: results/SUITE")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="cells at a time; default: one per core")] = None,
    minutes: Annotated[float | None, typer.Option(min=0, help="start no new cell after this time")] = None,
    svg: Annotated[Path | None, typer.Option(help="also write every figure as an SVG file into this folder")] = None,
    pairs: Annotated[str | None, typer.Option(metavar="A,B", help="only compare two methods of the results")] = None,
    rerun: Annotated[
        str | None,
        typer.Option(metavar="N|FILE", help="run N stored cells, or those a YAML file lists, again; compare digits"),
    ] = None,
    ranges: Annotated[bool, typer.Option(help="find the ranges of the tuned methods, for the suite's file")] = False,
) -> None:
    """Compare methods over tasks, settings and seeds, each with the same data, budget, start and tuning.

    Finished cells are kept: the same command goes on with what is missing. If nothing is missing, it writes the table
    and the page again.

    [dim]fspo compare[/]                                the list of suites
    [dim]fspo compare smoke[/]                          a test of a few seconds
    [dim]fspo compare suite.yaml --out results/mine --minutes 60[/]
    [dim]fspo compare law --rerun 20[/]                 does this machine give the stored digits?
    [dim]fspo compare law --pairs 'sqrt(L),constant'[/]
    """
    from fspo.comparisons import suite as suites
    from fspo.comparisons.plan import Plan
    from fspo.comparisons.results import Store, read
    from fspo.runs import locked

    if suite is None:
        table = Table("suite", "question")
        for name in suites.names():
            table.add_row(name, suites.load(name).title)
        console.print(table)
        return
    plan = Plan(suites.load(suite))
    folder = out or Path("results") / plan.suite.name
    if ranges:
        _print_ranges(plan)
    elif rerun is not None:
        _rerun(plan, {row["key"]: row for row in read(folder)}, rerun, workers or _cores())
    elif pairs is not None:
        _print_pairs(plan, read(folder), pairs)
    else:
        plan.suite.require_ranges()
        with locked(folder):
            store = Store(folder / "results.parquet")
            try:
                _run_missing(plan, store, folder, workers or _cores(), minutes)
            except KeyboardInterrupt:
                console.say(f"stopped; {_kept(plan, store)}")
                raise typer.Exit(130) from None
            rows = plan.finished(store.rows)
            store.put_first(rows)
            _publish(plan, rows, folder, svg)
        if len(rows) < plan.total:
            console.say(_kept(plan, store))


def _kept(plan: Plan, store: Store) -> str:
    done = len(plan.finished(store.rows))
    return f"{done} of {plan.total} cells are kept, and the same command goes on with what is missing"


def _run_missing(plan: Plan, store: Store, folder: Path, size: int, minutes: float | None) -> None:
    """Run the cells that the store lacks."""
    from fspo.comparisons.run import CellError, run, workers
    from fspo.files import replace_file

    until = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    done = len(plan.finished(store.rows))
    if done == plan.total:
        return
    console.say(f"{plan.suite.name}: {done} of {plan.total} cells are done, {size} at a time")
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)  # left behind by a command that was killed
    try:
        with workers(size) as pool:
            run(plan, store, pool, size, work.resolve(), console.say, until)
    except CellError as error:
        details = replace_file(folder / "error.txt", f"{error}\n\n{error.trace}")
        raise ValueError(f"{error}; {_kept(plan, store)}; {details} has the details") from None
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

    from fspo.comparisons import page
    from fspo.files import replace_file
    from fspo.pages.document import write_svg

    text = page.text(rows, plan.suite)
    replace_file(folder / "table.md", text)
    print(text)
    written = page.write(rows, plan.suite, folder / "report.html")
    console.say(f"results: {folder / 'results.parquet'}, report: {written}")
    if svg is not None:
        console.say(f"{len(write_svg(page.plots(rows, plan.suite), svg))} figures: {svg}")


# --- questions to results that exist ----------------------------------------------------------------------------------


def _rerun(plan: Plan, stored: dict[str, dict[str, Any]], asked: str, size: int) -> None:
    """Run stored cells again, in workers like those that made them, and print the outcome columns that differ."""
    from fspo.comparisons.results import as_stored, differences
    from fspo.comparisons.run import run_cell, workers

    cells = _chosen([cell for cell in plan.tuning + plan.test if cell.key in stored], asked, plan.suite.name)
    same = 0
    console.say(f"{len(cells)} cells, {size} at a time; a warm start that is not in the cache is made first")
    with workers(size) as pool, tempfile.TemporaryDirectory() as work:
        futures = [pool.submit(run_cell, cell, plan.warm_of(cell), Path(work)) for cell in cells]
        for cell, future in zip(cells, futures, strict=True):
            differing = differences(stored[cell.key], as_stored(future.result()))
            same += not differing
            console.say(f"{cell}: {', '.join(differing) + ' differ' if differing else 'same'}")
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


def _print_pairs(plan: Plan, rows: list[dict[str, Any]], asked: str) -> None:
    from fspo.comparisons.page import pairs
    from fspo.comparisons.statistics import SuiteResults

    results, parts = SuiteResults(plan.finished(rows), plan.suite), asked.split(",")
    named = [(",".join(parts[:k]).strip(), ",".join(parts[k:]).strip()) for k in range(1, len(parts))]
    one, other = next((both for both in named if set(both) <= set(results.methods)), (asked, ""))  # names have commas
    print(visible(pairs(results, one, other).markdown()))


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
