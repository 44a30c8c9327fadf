"""The command `fspo train`."""

from __future__ import annotations

import shlex
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fspo.cli import Terminal
from fspo.runtime import quiet

if TYPE_CHECKING:
    from fspo.config import TrainConfig

console = Terminal()


Engine = Literal["local", "trl", "verl"]


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
    try:
        with Display(summary | {"folder": str(folder)}, config.steps) as display:
            api.train(config, folder, resume=resume, force=force, engine=engine, observer=display)
    except RunInterruptedError as stop:
        with suppress(OSError):  # the signal may be that of a terminal that is gone
            console.say(f"saved after step {stop.step}; to go on: ", again)
        raise typer.Exit(128 + stop.signal_number) from None
    except KeyboardInterrupt:
        if (folder / "config.yaml").is_file():
            console.say("stopped; to go on from the last checkpoint: ", again)
        else:
            console.say("stopped before the run began; nothing is kept")
        raise typer.Exit(130) from None
    if report:
        from fspo.report.run_page import write

        console.say(f"report: {write(folder)}")


def _configured(arguments: list[str] | None, out: Path | None, resume: bool) -> tuple[TrainConfig, Path]:
    """The configuration and the folder of a run; one that is resumed starts from its own saved configuration."""
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
    if not (out / "config.yaml").is_file():
        raise ValueError(f"there is no run to resume in {out}: it has no config.yaml")
    return read(out / "config.yaml", overrides), out


def _task_name(config: TrainConfig) -> str:
    """The name of the task, as part of a folder's name."""
    from fspo import tasks

    return tasks.get(config.task).label.replace(":", "-").replace("/", "-")


def _described(config: TrainConfig, folder: Path, engine: Engine) -> str:
    if engine != "local":
        return str(import_module(f"fspo.engines.{engine}.run").dry_run(config, folder))
    import yaml

    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
