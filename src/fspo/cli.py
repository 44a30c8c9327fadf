"""The `fspo` command. Heavy libraries are imported by the command that needs them, so that help is instant."""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fspo.auditing.command import audit
from fspo.comparing.command import compare
from fspo.local.runtime import prepare, quiet
from fspo.report import command

app = typer.Typer(
    name="fspo",
    help="Length-fair reinforcement learning from verifiable rewards for language models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
console = Console()
errors = Console(stderr=True)
app.command()(audit)
app.command()(compare)


class Engine(enum.StrEnum):
    """Whose trainer runs a configuration."""

    local = "local"
    trl = "trl"
    verl = "verl"


Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="a YAML or TOML file first, then settings such as update.lr=2e-4 or objective.name=gspo"),
]


@app.command()
def train(
    arguments: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="folder of the run; default: runs/TASK-OBJECTIVE-SEED")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run in this folder, to the bit")] = False,
    report: Annotated[bool, typer.Option(help="write report.html at the end")] = True,
    engine: Annotated[Engine, typer.Option(help="whose trainer runs the configuration")] = Engine.local,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print what the engine would be given, and stop")] = False,
) -> None:
    """Train a policy. With no argument: a tiny model learns to sort, in minutes on two CPU cores.

    [dim]fspo train[/]
    [dim]fspo train my.yaml update.lr=2e-4 --out runs/mine[/]
    [dim]fspo train objective.name=gspo task=add steps=200[/]
    [dim]fspo train --out runs/mine --resume[/]
    [dim]fspo train my.yaml --engine verl --dry-run[/]
    """
    config, folder = _configured(arguments, out, resume)
    quiet()
    if dry_run:
        print(_described(config, folder, engine))
        return
    from fspo.local.loop import RunInterruptedError
    from fspo.report.display import Display

    run = _trainer(engine).train

    summary = {"model": config.model.path, "task": _label(config), "objective": config.objective["name"]}
    again = f"fspo train --out {folder} --resume" + (f" --engine {engine.value}" if engine is not Engine.local else "")
    try:
        with Display(summary | {"folder": str(folder)}, config.steps) as display:
            run(config, folder, resume=resume, observer=display)
    except RunInterruptedError as stop:
        console.print(f"saved after step {stop.step}; to go on: [bold]{again}[/]", soft_wrap=True)
        raise typer.Exit(130) from None
    except KeyboardInterrupt:
        console.print(f"stopped; to go on from the last checkpoint: [bold]{again}[/]", soft_wrap=True)
        raise typer.Exit(130) from None
    if report:
        from fspo.report.page import write

        console.print(f"report: {write(folder)}", soft_wrap=True)


@app.command()
def warmup(arguments: Overrides = None) -> None:
    """Fine-tune a tiny model on worked solutions until it solves a wanted share, and print where it is kept."""
    quiet()
    from fspo import tasks
    from fspo.local.config import read
    from fspo.local.warmup import warm_start

    path, overrides = _split(arguments)
    config = read(path, overrides)
    if config.warmup is None:
        raise ValueError("the configuration has no warmup: add for example warmup.solved=0.25")

    def progress(done: int, total: int, solved: float) -> None:
        errors.print(f"step {done} of at most {total}: {solved:.1%} solved")

    folder = warm_start(config, tasks.get(config.task), progress)
    print(folder)


@app.command(name="eval")
def evaluate(
    model: Annotated[str, typer.Argument(help="a run's folder, a checkpoint, a model folder or hub name, or a .gguf")],
    arguments: Annotated[list[str] | None, typer.Argument(help="settings such as task=add")] = None,
    prompts: Annotated[int, typer.Option(help="held-out prompts")] = 512,
    samples: Annotated[int, typer.Option(help="answers a prompt; above 1 gives avg@k and pass@k")] = 1,
    temperature: Annotated[float, typer.Option(help="0 is greedy")] = 0.0,
    top_p: Annotated[float | None, typer.Option(help="nucleus sampling, for evaluation only")] = None,
    top_k: Annotated[int | None, typer.Option(help="top-k sampling, for evaluation only")] = None,
    split: Annotated[str, typer.Option(help="train, validation or eval")] = "eval",
    json_out: Annotated[Path | None, typer.Option("--json", help="also write the figures here")] = None,
) -> None:
    """Accuracy of a model on a task, with intervals, by length and by difficulty."""
    found = _answers(model, arguments, split, prompts, samples, temperature, top_p, top_k)
    low, high = found.interval
    console.print(f"{found.prompts} prompts x {found.samples}: accuracy {found.accuracy:.1%} ({low:.1%} to {high:.1%})")
    for k, value in found.pass_at.items() if samples > 1 else ():
        low, high = found.pass_at_interval[k]
        console.print(f"pass@{k} {value:.1%} ({low:.1%} to {high:.1%})")
    if found.unscored or found.truncated:
        console.print(f"{found.unscored} not scored, {found.truncated:.1%} truncated")
    for name, rows in (("length", found.by_length), ("difficulty", found.by_difficulty)):
        table = Table(name, "answers", "accuracy", "95 % interval")
        for row in rows:
            low, high = row["interval"]
            span = f"{row['low']:g} to {row['high']:g}"
            table.add_row(span, str(row["count"]), f"{row['accuracy']:.1%}", f"{low:.1%} to {high:.1%}")
        console.print(table)
    if len(found.by_task) > 1:
        table = Table("task", "answers", "accuracy", "95 % interval")
        for name, row in found.by_task.items():
            low, high = row["interval"]
            table.add_row(name, str(row["count"]), f"{row['accuracy']:.1%}", f"{low:.1%} to {high:.1%}")
        console.print(table)
    if json_out is not None:
        import json

        json_out.write_text(json.dumps(found.row(), indent=1))


@app.command()
def sample(
    model: Annotated[str, typer.Argument(help="a run's folder, a checkpoint, a model folder or hub name, or a .gguf")],
    arguments: Annotated[list[str] | None, typer.Argument(help="settings such as task=add")] = None,
    prompts: Annotated[int, typer.Option(help="prompts to show")] = 5,
    samples: Annotated[int, typer.Option(help="answers a prompt")] = 1,
    temperature: Annotated[float, typer.Option(help="0 is greedy")] = 1.0,
    split: Annotated[str, typer.Option(help="train, validation or eval")] = "eval",
) -> None:
    """Show what a model answers, with the reward of each answer."""
    from rich.text import Text

    found = _answers(model, arguments, split, prompts, samples, temperature, None, None)
    for i, answer in enumerate(found.answers):
        if i % samples == 0:
            console.print(Text(answer.prompt, style="bold"))
        reward = "not scored" if answer.reward is None else f"{answer.reward:g}"
        cut = ", truncated" if answer.truncated else ""
        console.print(
            Text(f"  {answer.completion}"), Text(f"  reward {reward}, {answer.length} tokens{cut}", style="dim")
        )


for report_command in (command.report, command.watch, command.explore):
    app.command()(report_command)


@app.command()
def methods(name: Annotated[str | None, typer.Argument(help="show one method's parameters")] = None) -> None:
    """List the objectives, or the parameters of one."""
    from fspo import objectives

    if name is None:
        table = Table("objective", "what it does")
        for key in objectives.names():
            table.add_row(key, objectives.REGISTRY[key].summary)
        console.print(table)
        return
    objective = objectives.get(name)
    console.print(f"[bold]{name}[/]: {objective.summary}")
    table = Table("parameter", "default", "what it is")
    for key, field in type(objective).model_fields.items():
        table.add_row(key, str(field.default), field.description or "")
    console.print(table)


@app.command()
def tasks() -> None:
    """List the tasks."""
    from fspo import tasks as library

    table = Table("task", "what it asks")
    for key, summary in library.summaries().items():
        table.add_row(key, summary)
    console.print(table)


def _split(arguments: list[str] | None) -> tuple[str | None, list[str]]:
    """A configuration file, if the first argument is one, and the settings after it."""
    values = list(arguments or [])
    path = values.pop(0) if values and "=" not in values[0] else None
    return path, values


def _configured(arguments: list[str] | None, out: Path | None, resume: bool) -> tuple[Any, Path]:
    from fspo.local.config import read

    path, overrides = _split(arguments)
    if resume and out is not None and path is None and not overrides:
        if not (out / "config.yaml").is_file():
            raise ValueError(f"there is no run to resume in {out}: it has no config.yaml")
        path = str(out / "config.yaml")
    config = read(path, overrides)
    return config, out or Path("runs") / f"{_label(config)}-{config.objective['name']}-{config.seed}"


def _trainer(engine: Engine) -> Any:
    """The module whose `train` runs a configuration on this engine."""
    from importlib import import_module

    return import_module("fspo.local.loop" if engine is Engine.local else f"fspo.engines.run_{engine.value}")


def _described(config: Any, folder: Path, engine: Engine) -> str:
    if engine is not Engine.local:
        return _trainer(engine).describe(config, folder)
    import yaml

    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _label(config: Any) -> str:
    from fspo import tasks as library

    return library.get(config.task).label.replace(":", "-").replace("/", "-")


def _answers(
    model: str,
    arguments: list[str] | None,
    split: str,
    prompts: int,
    samples: int,
    temperature: float,
    top_p: float | None,
    top_k: int | None,
) -> Any:
    """Answers of a model to held-out prompts; a run's folder brings its task and its last checkpoint."""
    quiet()
    from fspo import tasks as library
    from fspo.local import checkpoint
    from fspo.local.config import read
    from fspo.local.evaluate import evaluate
    from fspo.local.models import load, set_threads
    from fspo.tasks.scoring import Scorer

    folder = Path(model)
    run = next((p for p in (folder, *folder.parents[:2]) if (p / "config.yaml").is_file()), None)
    config = read(None if run is None else str(run / "config.yaml"), arguments or [])
    if run == folder:
        saved = checkpoint.steps(folder / "checkpoints")
        last = checkpoint.path_of(folder / "checkpoints", saved[-1]) if saved else folder / "model"  # TRL's
        if not last.is_dir():
            raise ValueError(f"the run in {folder} has no checkpoint yet")
        model = str(last)
    policy = load(model, dtype=config.model.dtype, device=config.model.device)
    set_threads(policy, config.model.threads)
    asked = any(argument.partition("=")[0].split(".")[0] == "task" for argument in arguments or [])
    task = library.get(config.task if asked else config.eval_task)
    with Scorer(task, **config.scoring.model_dump()) as scorer:
        return evaluate(
            policy, task, scorer, split=split, prompts=prompts, samples=samples, temperature=temperature,
            max_new_tokens=config.rollout.max_new_tokens, top_p=top_p, top_k=top_k, seed=config.seed,
            chat=config.model.chat,
        )  # fmt: skip


def main() -> None:
    """Run the command; an expected failure is one sentence on standard error and exit code 2."""
    prepare()
    try:
        app()
    except (ValueError, FloatingPointError, FileNotFoundError) as error:
        errors.print(f"[bold red]error:[/] {error}", highlight=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
