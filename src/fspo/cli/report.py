"""The commands `report`, `watch` and `explore`; their imports are inside them, so that help is instant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fspo.cli.evaluate import Trust
from fspo.cli.terminal import Terminal

console = Terminal()


def report(
    runs: Annotated[list[Path], typer.Argument(help="run folders; several are drawn in the same charts")],
    out: Annotated[
        Path | None, typer.Option(help="file to write; default: report.html in the run's folder, or compare.html")
    ] = None,
    svg: Annotated[Path | None, typer.Option(help="also write every plot as an SVG file into this folder")] = None,
    png: Annotated[Path | None, typer.Option(help="also write every plot as a PNG file into this folder")] = None,
    trust: Trust = False,
) -> None:
    """Write the report of a run, or one page that compares several: a single file that opens offline.

    [dim]fspo report runs/mine[/]
    [dim]fspo report runs/fspo runs/gspo --out compare.html[/]
    [dim]fspo report runs/mine --svg figures --png figures[/]
    """
    from fspo.runs import is_run

    for run in runs:
        if not is_run(run):
            raise ValueError(f"{run} is not a run folder: give a folder that `fspo train --out` wrote")
    from fspo.pages import images
    from fspo.report import run_page
    from fspo.report.report_run import load_all

    loaded = load_all(runs, trust=trust)
    console.say(f"report: {run_page.save(loaded, out)}")
    for folder, write in ((svg, images.write_svg), (png, images.write_png)):
        if folder is not None:
            console.say(f"{len(write(run_page.plots(loaded), folder))} plots: {folder}")


def watch(
    run: Annotated[Path, typer.Argument(help="folder of a run that is training or about to start")],
    port: Annotated[int, typer.Option(help="port on this machine; 0 for any free one")] = 0,
    browser: Annotated[bool, typer.Option("--open", help="open it in the browser")] = False,
    trust: Trust = False,
) -> None:
    """Show a run's report while it trains: the page updates itself. Only this machine can open it.

    [dim]fspo watch runs/mine[/]
    [dim]fspo watch runs/mine --port 8000 --open[/]
    """
    from fspo.report.watch import open_server

    with open_server(run, port, trust=trust) as server:
        console.say(f"watching {run} at {server.url} (Ctrl-C ends)")
        if browser:
            typer.launch(server.url)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            console.print("stopped")


def explore(
    objectives: Annotated[
        list[str] | None, typer.Argument(help="objectives to show besides, such as luspo or module:Class")
    ] = None,
    out: Annotated[Path, typer.Option(help="file to write")] = Path("explore.html"),
    browser: Annotated[bool, typer.Option("--open", help="open it in the browser")] = False,
) -> None:
    """Write the band explorer: a page with sliders that shows what each method clips, by length.

    [dim]fspo explore --open[/]
    [dim]fspo explore luspo --out lecture.html[/]
    """
    from fspo.report.explore import write

    path = write(out, objectives or [])
    console.say(f"explorer: {path}")
    if browser:
        typer.launch(path.resolve().as_uri())
