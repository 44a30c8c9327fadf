"""The commands on a run: `eval`, `sample`, `export`, `report` and `watch`; and `explore`.

Imports of heavy libraries are inside the commands, so that help is instant.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from fspo.cli import JsonOut, Terminal, Trust, write_json
from fspo.runtime import quiet
from fspo.text import visible

if TYPE_CHECKING:
    from fspo.runs import Rate, RateBin

console = Terminal()

Model = Annotated[str, typer.Argument(help="a run's folder, a checkpoint, a model folder or hub name, or a .gguf")]
Settings = Annotated[list[str] | None, typer.Argument(help="settings such as task=add")]
Split = Annotated[str | None, typer.Option(help="train, validation or eval; default: the run's eval.split")]
OpenBrowser = Annotated[bool, typer.Option("--open", help="open it in the browser")]


def evaluate(
    model: Model,
    arguments: Settings = None,
    prompts: Annotated[int | None, typer.Option(help="held-out prompts; default: the run's eval.prompts")] = None,
    samples: Annotated[
        int | None, typer.Option(help="answers per prompt, above 1 for avg@k and pass@k; default: the run's")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="0 is greedy; default: the run's eval.temperature, which is 1 if not set")
    ] = None,
    split: Split = None,
    json_out: JsonOut = None,
) -> None:
    """Accuracy of a model on a task, with intervals, by length and by difficulty.

    A run is evaluated as it was during training: the same prompts, temperature and number of answers.

    [dim]fspo eval runs/mine[/]
    [dim]fspo eval runs/mine --samples 8 --prompts 64[/]   pass@k
    [dim]fspo eval runs/mine task=count --temperature 0 --json[/]   another task, greedy
    """
    quiet()
    from fspo import api
    from fspo.config import tables
    from fspo.runs import unscored_warnings

    result = api.evaluate(
        model, tables(arguments or []), prompts=prompts, samples=samples, temperature=temperature, split=split,
    )  # fmt: skip
    if json_out is not None:
        write_json(result.line(0).model_dump(exclude={"step"}), json_out)
        if json_out == "-":
            return
    low, high = result.interval
    accuracy = "unknown" if result.accuracy is None else f"{result.accuracy:.1%}"
    console.print(f"{result.prompts} prompts x {result.samples}: accuracy {accuracy} ({low:.1%} to {high:.1%})")
    for k, value in result.pass_at.items() if result.samples > 1 else ():
        low, high = result.pass_at_interval[k]
        console.print(f"pass@{k} {value:.1%} ({low:.1%} to {high:.1%})")
    if result.unscored or result.truncated:
        console.print(f"{result.unscored} not scored, {result.truncated:.1%} truncated")
    for warning in unscored_warnings(result.line(0)).values():
        console.print(Text(visible(warning)))
    for name, bins in (("length", result.by_length), ("difficulty", result.by_difficulty)):
        _print_rates(name, ((f"{b.low:g} to {b.high:g}", b) for b in bins))
    if len(result.by_task) > 1:
        _print_rates("task", result.by_task.items())


def _print_rates(name: str, rows: Iterable[tuple[str, Rate | RateBin]]) -> None:
    table = Table(name, "answers", "accuracy", "95 % interval")
    for label, rate in rows:
        low, high = rate.interval
        table.add_row(Text(visible(label)), str(rate.count), f"{rate.accuracy:.1%}", f"{low:.1%} to {high:.1%}")
    console.print(table)


def sample(
    model: Model,
    arguments: Settings = None,
    prompts: Annotated[int, typer.Option(help="held-out prompts to show")] = 5,
    prompt: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="answer this text instead; may be given several times")
    ] = None,
    samples: Annotated[int, typer.Option(help="answers per prompt")] = 1,
    temperature: Annotated[float, typer.Option(help="0 is greedy")] = 1.0,
    split: Split = None,
) -> None:
    """Show what a model answers, with the reward of each answer.

    [dim]fspo sample runs/mine --prompts 3 --samples 4[/]
    [dim]fspo sample runs/mine --prompt sort:dbca= --temperature 0[/]   a prompt of your own
    """
    quiet()
    from fspo import api
    from fspo.config import tables

    asked: int | list[str] = prompt or prompts
    answers = api.sample(model, asked, tables(arguments or []), samples=samples, temperature=temperature, split=split)
    for i, answer in enumerate(answers):
        if i % samples == 0:
            console.print(Text(visible(answer.prompt), style="bold"))
        facts = [] if prompt else ["not scored" if answer.reward is None else f"reward {answer.reward:g}"]
        facts += [f"{answer.length} tokens", *(["truncated"] if answer.truncated else [])]
        console.print(Text(f"  {visible(answer.completion)}"), Text(f"  {', '.join(facts)}", style="dim"))


def export(
    run: Annotated[Path, typer.Argument(help="a run's folder")],
    out: Annotated[Path, typer.Argument(help="a new folder for the model")],
    merge: Annotated[bool, typer.Option("--merge", help="add LoRA adapters to the weights of their model")] = False,
) -> None:
    """Write a run's final weights and tokenizer as a model folder, with a model card of the run's figures.

    [dim]fspo export runs/mine models/mine[/]
    [dim]fspo export runs/lora models/lora --merge[/]
    """
    quiet()
    from fspo.api import export as write

    console.say(f"model: {write(run, out, merge=merge)}")


def report(
    runs: Annotated[list[Path], typer.Argument(help="run folders; several are drawn in the same charts")],
    out: Annotated[
        Path | None, typer.Option(help="file to write; default: report.html in the run's folder, or compare.html")
    ] = None,
    trust: Trust = False,
) -> None:
    """Write the report of a run, or one page that compares several: a single file that opens offline.

    [dim]fspo report runs/mine[/]
    [dim]fspo report runs/fspo runs/gspo --out compare.html[/]
    """
    from fspo import objectives
    from fspo.report import run_page
    from fspo.report.report_run import load_all
    from fspo.runs import is_run, run_folder

    folders = [run_folder(run) for run in runs]
    for folder in folders:
        if not is_run(folder):
            raise ValueError(
                f"{folder} is not a run folder: give one that `fspo train --out` wrote, or a TRL script's output folder"
            )
    loaded = load_all(folders)
    for run in loaded if trust else []:
        objectives.get_class(run.objective["name"])
    console.say(f"report: {run_page.save(loaded, out)}")


def watch(
    run: Annotated[Path, typer.Argument(help="folder of a run that is training or about to start")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="port on this machine; 0 for any free one")] = 0,
    browser: OpenBrowser = False,
) -> None:
    """Show a run's report while it trains: the page updates itself. Only this machine can open it.

    [dim]fspo watch runs/mine[/]
    [dim]fspo watch runs/mine --port 8000 --open[/]
    """
    from fspo.report.watch import open_server

    with open_server(run, port) as server:
        console.say(f"watching {run} at {server.url} (Ctrl-C ends)")
        if browser:
            typer.launch(server.url)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            console.print("stopped")


def explore(
    out: Annotated[Path | None, typer.Option(help="file to write; default: a temporary one, which is opened")] = None,
    browser: OpenBrowser = False,
) -> None:
    """Open the band explorer, a page with sliders that shows what each method clips, by length; or write it to a file.

    [dim]fspo explore[/]
    [dim]fspo explore --out lecture.html[/]
    """
    import tempfile

    from fspo.report.explore import write

    path = write(out or Path(tempfile.mkdtemp(prefix="fspo-")) / "explore.html")
    console.say(f"explorer: {path}")
    if browser or out is None:
        typer.launch(path.resolve().as_uri())
