"""The command `fspo compare`."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from fspo.comparing.run import Crew
    from fspo.comparing.store import Store
    from fspo.comparing.suite import Plan

console = Console()


def compare(
    suite: Annotated[
        str | None, typer.Argument(help="a suite of the list, or a YAML file; none shows the list")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="folder of the results; default: results/SUITE")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="cells at a time; default: one a core, or all of a Ray cluster's cores")
    ] = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="run on this Ray cluster; local starts one here")
    ] = None,
    minutes: Annotated[float | None, typer.Option(min=0, help="start no new cell after this time")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="test seeds, in the place of the suite's number")] = None,
    svg: Annotated[Path | None, typer.Option(help="also write every figure as an SVG file into this folder")] = None,
    png: Annotated[Path | None, typer.Option(help="also write every figure as a PNG file into this folder")] = None,
    show: Annotated[bool, typer.Option("--list", help="list the suites and what each asks")] = False,
) -> None:
    """Compare methods over tasks, settings and seeds: every one with the same data, budget, start and tuning.

    Cells that are finished stay finished: the same command goes on with what is missing, and writes the table and the
    page again if nothing is.

    [dim]fspo compare[/]                                the list of suites
    [dim]fspo compare smoke[/]                          a try of seconds
    [dim]fspo compare my.yaml --out results/mine --minutes 60[/]
    [dim]fspo compare my.yaml --ray 10.0.0.5:6379[/]
    """
    from fspo.comparing import suite as suites

    if show or suite is None:
        table = Table("suite", "what it asks")
        for name in suites.names():
            table.add_row(name, suites.load(name).title)
        console.print(table)
        return
    asked = suites.load(suite)
    if seeds is not None:
        asked = asked.model_copy(update={"seeds": seeds})
    plan = suites.Plan(asked)
    folder = out or Path("results") / asked.name
    again = "the same command goes on with what is missing"
    with _claimed(folder) as store:
        try:
            _go(plan, store, folder, workers, ray, minutes)
        except KeyboardInterrupt:
            done = len(plan.finished(store.rows))
            console.print(f"stopped; {done} of {plan.total} cells are kept, and {again}", soft_wrap=True)
            raise typer.Exit(130) from None
        rows = plan.finished(store.rows)
        store.put_first(rows)
        _publish(plan, rows, folder, svg, png)
    if len(rows) < plan.total:
        console.print(f"{len(rows)} of {plan.total} cells are done, and {again}", soft_wrap=True)


def _go(plan: Plan, store: Store, folder: Path, workers: int | None, ray: str | None, minutes: float | None) -> None:
    """Run what is missing."""
    from fspo.comparing.progress import Board
    from fspo.comparing.run import CellError, run

    until = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    done = len(plan.finished(store.rows))
    if done == plan.total:
        return
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)  # of a command that was killed
    crew = _crew(workers, ray, work.resolve())
    try:
        with Board(console, done, plan.total, crew.size) as board:
            run(plan, store, crew, board, until)
        console.print(board.summary())
    except CellError as error:
        (folder / "error.txt").write_text(f"{error}\n\n{error.trace}")
        left = plan.total - len(plan.finished(store.rows))
        raise ValueError(
            f"{error}; {plan.total - left} of {plan.total} cells are kept, the same command goes on, and "
            f"{folder / 'error.txt'} has the details"
        ) from None
    finally:
        crew.close()
    shutil.rmtree(work, ignore_errors=True)


def _crew(workers: int | None, ray: str | None, work: Path) -> Crew:
    from fspo.comparing.run import Cluster, Processes

    if ray is not None:
        return Cluster(ray, workers)
    return Processes(workers or _cores(), work)


def _cores() -> int:
    """Physical cores that this process may use."""
    import psutil

    from fspo.local.runtime import usable_cores

    return max(1, min(usable_cores(), psutil.cpu_count(logical=False) or 1))


def _publish(plan: Plan, rows: list[dict], folder: Path, svg: Path | None, png: Path | None) -> None:
    """The table, the page and the figures of what is there."""
    if not any(row["phase"] == "test" for row in rows):
        return
    from fspo.comparing import page, table

    text = table.text(rows, plan.suite)
    (folder / "table.md").write_text(text, encoding="utf-8")
    print(text)
    written = page.write(rows, plan.suite, folder / "report.html")
    console.print(f"results: {folder / 'results.parquet'}, report: {written}", soft_wrap=True)
    if svg or png:
        files = page.write_images(rows, plan.suite, svg=svg, png=png)
        console.print(f"{len(files)} figures: {' '.join(str(f) for f in (svg, png) if f)}", soft_wrap=True)


@contextlib.contextmanager
def _claimed(folder: Path) -> Iterator[Store]:
    """The results of a folder, held against a second command until the end."""
    from fspo.comparing.store import Store

    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # Windows: nobody is kept out
        yield Store(folder / "results.parquet")
        return
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield Store(folder / "results.parquet")
    except BlockingIOError:
        raise ValueError(f"another fspo compare is writing to {folder}: wait for it, or use another --out") from None
    finally:
        os.close(held)
