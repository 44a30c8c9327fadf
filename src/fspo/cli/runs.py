"""The commands on a run: `train`, `eval`, `export`, `audit`, `report` and `watch`; and `explore`.

Imports of heavy libraries are inside the commands, so that help is instant.
"""

from __future__ import annotations

import shlex
import shutil
import signal
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer
from rich.table import Table
from rich.text import Text

from fspo.cli import JsonOut, Terminal
from fspo.runtime import quiet
from fspo.text import visible

if TYPE_CHECKING:
    from fspo.config import TrainConfig
    from fspo.runs import Rate, RateBin

console = Terminal()

Engine = Literal["local", "trl", "verl"]
Column = Annotated[str | None, typer.Option(metavar="COLUMN", rich_help_panel="Columns, found by name if not given")]


def train(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="a YAML file first, then settings such as update.lr=2e-4 or objective.name=gspo"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="folder of the run; default: runs/TASK-OBJECTIVE-SEED")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on with the run in this folder, from its saved configuration")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="with --resume: take settings that make it another run")
    ] = False,
    report: Annotated[bool, typer.Option(help="write report.html at the end")] = True,
    engine: Annotated[Engine, typer.Option(help="the trainer that runs the configuration")] = "local",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print what the engine would be given, and stop")] = False,
) -> None:
    """Train a policy. With no argument: a tiny model learns to count down, in minutes on two CPU cores.

    [dim]fspo train[/]
    [dim]fspo train my.yaml update.lr=2e-4 --out runs/mine[/]
    [dim]fspo train objective.name=gspo task=count steps=200[/]
    [dim]fspo train --out runs/mine --resume[/]
    [dim]fspo train --out runs/mine --resume steps=400[/]
    [dim]fspo train my.yaml --engine verl --dry-run[/]
    """
    config, folder = _configured(arguments, out, resume)
    if engine != "verl":  # which says what is missing, and writes a log of its own
        quiet()
    if dry_run:
        print(_described(config, folder, engine))
        return
    from fspo import api
    from fspo.cli.display import Display
    from fspo.training.stopping import RunInterruptedError

    summary = {"model": config.model.path, "task": _task_name(config), "objective": config.objective["name"]}
    again = shlex.join(["fspo", "train", "--out", str(folder), "--resume"])
    again += f" --engine {engine}" if engine != "local" else ""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # before the first step it stops like Ctrl-C
        signal.signal(signal.SIGTERM, _stop)
    try:
        with Display(summary | {"folder": str(folder)}, config.steps) as display:
            api.train(config, folder, resume=resume, force=force, engine=engine, observer=display)
    except RunInterruptedError as stop:
        with suppress(OSError):  # the signal may be that of a terminal that is gone
            console.say(f"saved after step {stop.step}; to go on: ", again)
        raise typer.Exit(128 + stop.signal_number) from None
    except KeyboardInterrupt as stop:
        if (folder / "config.yaml").is_file():
            console.say("stopped; to go on from the last checkpoint: ", again)
        else:
            console.say("stopped before the run began; nothing is kept")
        raise typer.Exit(128 + (stop.args[0] if stop.args else signal.SIGINT)) from None
    if report:
        from fspo.report.run_page import write

        console.say(f"report: {write(folder)}")


def _stop(number: int, frame: Any) -> NoReturn:
    raise KeyboardInterrupt(number)


def _configured(arguments: list[str] | None, out: Path | None, resume: bool) -> tuple[TrainConfig, Path]:
    """The configuration and the folder of a run; one that is resumed starts from its own saved configuration."""
    from fspo.api import saved
    from fspo.config import read

    overrides = list(arguments or [])
    path = overrides.pop(0) if overrides and "=" not in overrides[0] else None
    if not resume:
        config = read(path, overrides)
        return config, out or Path("runs") / f"{_task_name(config)}-{config.objective['name']}-{config.seed}"
    if path is not None:
        raise ValueError(f"a resumed run has its own configuration: leave {path!r} out, or give single settings")
    if out is None:
        raise ValueError("--resume needs the folder of the run: add --out FOLDER")
    return saved(out, overrides), out


def _task_name(config: TrainConfig) -> str:
    """The name of the task, as part of a folder's name."""
    from fspo import tasks

    return tasks.get(config.task).label.replace(":", "-").replace("/", "-")


def _described(config: TrainConfig, folder: Path, engine: Engine) -> str:
    if engine != "local":
        return str(import_module(f"fspo.engines.{engine}.run").dry_run(config, folder))
    import yaml

    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def evaluate(
    model: Annotated[str, typer.Argument(help="a run's folder, a checkpoint, a model folder or hub name, or a .gguf")],
    arguments: Annotated[list[str] | None, typer.Argument(help="settings such as task=add")] = None,
    prompts: Annotated[int | None, typer.Option(help="held-out prompts; default: the run's eval.prompts")] = None,
    samples: Annotated[
        int | None, typer.Option(help="answers per prompt, above 1 for avg@k and pass@k; default: the run's")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="0 is greedy; default: the run's eval.temperature, which is 1 if not set")
    ] = None,
    split: Annotated[str | None, typer.Option(help="train, validation or eval; default: the run's eval.split")] = None,
    show: Annotated[int, typer.Option(help="also print the answers to this many prompts, with their rewards")] = 0,
    json_out: JsonOut = None,
) -> None:
    """Accuracy of a model on a task, with intervals, by length and by difficulty.

    A run is evaluated as it was during training: the same prompts, temperature and number of answers.

    [dim]fspo eval runs/mine[/]
    [dim]fspo eval runs/mine --samples 8 --prompts 64[/]   pass@k
    [dim]fspo eval runs/mine --show 3[/]   and what it answers
    [dim]fspo eval runs/mine task=count --temperature 0 --json -[/]   another task, greedy
    """
    quiet()
    from fspo import api
    from fspo.config import tables
    from fspo.files import json_text, replace_file
    from fspo.runs import unscored_warnings

    result = api.evaluate(
        model, tables(arguments or []), prompts=prompts, samples=samples, temperature=temperature, split=split,
    )  # fmt: skip
    if json_out is not None:
        text = json_text(result.line(0).model_dump(exclude={"step"}), indent=1)
        if json_out == "-":
            print(text)
            return
        replace_file(json_out, text)
    low, high = result.interval
    accuracy = "unknown" if result.accuracy is None else f"{result.accuracy:.1%}"
    asked = visible(", ".join(sorted({answer.task for answer in result.answers})))
    console.print(
        f"task {asked}, {result.prompts} prompts x {result.samples}: accuracy {accuracy} ({low:.1%} to {high:.1%})"
    )
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
    for answer in result.answers[: show * result.samples]:
        reward = "not scored" if answer.reward is None else f"reward {answer.reward:g}"
        said = f"{visible(answer.prompt)} {visible(answer.completion)}"
        console.print(Text.assemble(said, (f"  {reward}, {answer.length} tokens", "dim")))


def _print_rates(name: str, rows: Iterable[tuple[str, Rate | RateBin]]) -> None:
    table = Table(name, "answers", "accuracy", "95 % interval")
    for label, rate in rows:
        low, high = rate.interval
        table.add_row(Text(visible(label)), str(rate.count), f"{rate.accuracy:.1%}", f"{low:.1%} to {high:.1%}")
    console.print(table)


def export(
    run: Annotated[Path, typer.Argument(help="a run's folder")],
    out: Annotated[Path, typer.Argument(help="a new folder for the model")],
) -> None:
    """Write a run's final weights and tokenizer as a model folder.

    [dim]fspo export runs/mine models/mine[/]
    """
    quiet()
    from fspo.api import export as write

    console.say(f"model: {write(run, out)}")


def audit(
    files: Annotated[
        list[str],
        typer.Argument(help="tables (Parquet, JSONL, JSON, CSV, TSV; .gz, .zst), patterns, or folders of runs"),
    ],
    by: Annotated[str | None, typer.Option(metavar="COLUMN", help="fairness over this column, not length")] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            help="the run's rule, name:parameter=value,..., if no column says what was accepted; the name may be "
            "module:Class"
        ),
    ] = None,
    clip_rate: Annotated[
        float | None, typer.Option(help="rate for which the band is chosen; default: the run's")
    ] = None,
    mismatch: Annotated[
        bool, typer.Option("--mismatch", help="the log-probs compare sampler and trainer: audit mismatch rules")
    ] = False,
    bins: Annotated[int, typer.Option(help="quantile bins")] = 8,
    json_out: JsonOut = None,
    html: Annotated[Path | None, typer.Option(metavar="PATH", help="write one page that opens offline")] = None,
    length: Column = None,
    log_ratio: Column = None,
    logprobs: Column = None,
    old_logprobs: Column = None,
    sampler_logprobs: Column = None,
    mask: Column = None,
    accepted: Column = None,
    clipped: Column = None,
    advantage: Column = None,
    reward: Column = None,
    truncated: Column = None,
) -> None:
    """How unfair is a run's clipping, over length or over any column?

    Clip rate by bin with intervals under the run's own rule, a recommended band and a fixed range, the LRE, mu, sigma
    and H, truncation and reward by length.

    [dim]fspo audit runs/mine[/]
    [dim]fspo audit 'dumps/*.parquet' --html audit.html --json audit.json[/]
    [dim]fspo audit rows.csv --length n_tokens --log-ratio s --rule gspo:clip_low=3e-4,clip_high=4e-4[/]
    [dim]fspo audit tokens.parquet --logprobs new --old-logprobs old --by task[/]
    [dim]fspo audit runs/mine --clip-rate 0.05[/]   the band for a clip rate of 5 %
    """
    from fspo.audits import audit as run

    given = {
        "length": length, "log_ratio": log_ratio, "logprobs": logprobs, "old_logprobs": old_logprobs,
        "sampler_logprobs": sampler_logprobs, "mask": mask, "accepted": accepted, "clipped": clipped,
        "advantage": advantage, "reward": reward, "truncated": truncated,
    }  # fmt: skip
    result = run(
        files, columns={role: name for role, name in given.items() if name is not None}, by=by, rule=rule,
        clip_rate=clip_rate, mismatch=mismatch, bins=bins,
    )  # fmt: skip
    # Files first: a pipe that is closed while the text is printed must not lose them.
    if json_out is not None and json_out != "-":
        result.write_json(json_out)
    if html is not None:
        result.write_html(html)
    print(result.to_json() if json_out == "-" else result.text(shutil.get_terminal_size((100, 24)).columns))


def report(
    runs: Annotated[list[Path], typer.Argument(help="run folders; several are drawn in the same charts")],
    out: Annotated[
        Path | None, typer.Option(help="file to write; default: report.html in the run's folder, or compare.html")
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="import the Python code that the run's configuration names")
    ] = False,
) -> None:
    """Write the report of a run, or one page that compares several: a single file that opens offline.

    [dim]fspo report runs/mine[/]
    [dim]fspo report runs/fspo runs/gspo --out compare.html[/]
    """
    from fspo import objectives
    from fspo.report import run_page
    from fspo.report.report_run import load_all
    from fspo.runs.folder import is_run, run_folder

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
) -> None:
    """Show a run's report while it trains: the page updates itself. Only this machine can open it.

    [dim]fspo watch runs/mine[/]
    [dim]fspo watch runs/mine --port 8000[/]
    """
    from fspo.report.watch import open_server

    with open_server(run, port) as server:
        console.say(f"watching {run} at {server.url} (Ctrl-C ends)")
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            console.print("stopped")


def explore(
    out: Annotated[Path | None, typer.Option(help="file to write; default: a temporary one, which is opened")] = None,
) -> None:
    """Open the band explorer, a page with sliders that shows what each method clips, by length; or write it to a file.

    [dim]fspo explore[/]
    [dim]fspo explore --out lecture.html[/]
    """
    import tempfile

    from fspo.report.explore import write

    path = write(out or Path(tempfile.mkdtemp(prefix="fspo-")) / "explore.html")
    console.say(f"explorer: {path}")
    if out is None:
        typer.launch(path.resolve().as_uri())
