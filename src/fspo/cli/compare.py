"""The command `fspo compare`."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fspo.cli import Terminal
from fspo.text import visible

if TYPE_CHECKING:
    from fspo.comparisons.plan import Plan
    from fspo.comparisons.store import Store
    from fspo.comparisons.workers import Executor

console = Terminal()


def compare(
    suite: Annotated[
        str | None, typer.Argument(help="a suite of the list, or a YAML file; without it the list is shown")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="folder of the results; default: results/SUITE")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="cells at a time; default: one per core, of the Ray cluster with --ray")
    ] = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="run on this Ray cluster; local starts one here")
    ] = None,
    minutes: Annotated[float | None, typer.Option(min=0, help="start no new cell after this time")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="number of test seeds; default: the suite's")] = None,
    svg: Annotated[Path | None, typer.Option(help="also write every figure as an SVG file into this folder")] = None,
    png: Annotated[Path | None, typer.Option(help="also write every figure as a PNG file into this folder")] = None,
    show: Annotated[bool, typer.Option("--list", help="list the suites and their questions")] = False,
) -> None:
    """Compare methods over tasks, settings and seeds, each with the same data, budget, start and tuning.

    Finished cells are kept: the same command goes on with what is missing. If nothing is missing, it writes the table
    and the page again.

    [dim]fspo compare[/]                                the list of suites
    [dim]fspo compare smoke[/]                          a test of a few seconds
    [dim]fspo compare suite.yaml --out results/mine --minutes 60[/]
    [dim]fspo compare suite.yaml --ray 10.0.0.5:6379[/]
    """
    from fspo.comparisons import suite as suites
    from fspo.comparisons.plan import Plan
    from fspo.comparisons.store import Store
    from fspo.runs import locked

    if show or suite is None:
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
    again = "the same command goes on with what is missing"
    with locked(folder):
        store = Store(folder / "results.parquet")
        try:
            _run_missing(plan, store, folder, workers, ray, minutes)
        except KeyboardInterrupt:
            done = len(plan.finished(store.rows))
            console.say(f"stopped; {done} of {plan.total} cells are kept, and {again}")
            raise typer.Exit(130) from None
        rows = plan.finished(store.rows)
        store.put_first(rows)
        _publish(plan, rows, folder, svg, png)
    if len(rows) < plan.total:
        console.say(f"{len(rows)} of {plan.total} cells are done, and {again}")


def _run_missing(
    plan: Plan, store: Store, folder: Path, workers: int | None, ray: str | None, minutes: float | None
) -> None:
    """Run the cells that the store lacks."""
    from fspo.comparisons.progress import SuiteProgress
    from fspo.comparisons.workers import CellError, run
    from fspo.files import replace_file

    until = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    done = len(plan.finished(store.rows))
    if done == plan.total:
        return
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)  # left behind by a command that was killed
    executor = _executor(workers, ray, work.resolve())
    try:
        with SuiteProgress(console, done, plan.total, executor.size) as progress:
            run(plan, store, executor, progress, until)
        console.print(progress.summary())
    except CellError as error:
        details = replace_file(folder / "error.txt", f"{error}\n\n{error.trace}")
        raise ValueError(
            f"{error}; {len(plan.finished(store.rows))} of {plan.total} cells are kept, the same command goes on, and "
            f"{details} has the details"
        ) from None
    finally:
        executor.close()
    shutil.rmtree(work, ignore_errors=True)


def _executor(workers: int | None, ray: str | None, work: Path) -> Executor:
    from fspo.comparisons.workers import LocalExecutor, RayExecutor

    if ray is not None:
        return RayExecutor(ray, workers)
    return LocalExecutor(workers or _cores(), work)


def _cores() -> int:
    """Physical cores that this process may use."""
    import psutil

    from fspo.runtime import usable_cores

    return max(1, min(usable_cores(), psutil.cpu_count(logical=False) or 1))


def _publish(plan: Plan, rows: list[dict[str, Any]], folder: Path, svg: Path | None, png: Path | None) -> None:
    """Write the table, the page and the figures of the finished cells."""
    if not any(row["phase"] == "test" for row in rows):
        return

    from fspo.comparisons.views import comparison_page, comparison_tables
    from fspo.files import replace_file

    text = comparison_tables.text(rows, plan.suite)
    replace_file(folder / "table.md", text)
    print(visible(text))
    written = comparison_page.write(rows, plan.suite, folder / "report.html")
    console.say(f"results: {folder / 'results.parquet'}, report: {written}")
    if svg or png:
        files = comparison_page.write_images(rows, plan.suite, svg=svg, png=png)
        console.say(f"{len(files)} figures: {' '.join(str(f) for f in (svg, png) if f)}")
