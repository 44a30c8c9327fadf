"""The commands `train` and `warmup`."""

from __future__ import annotations

import enum
import shlex
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fspo.cli import Overrides, Terminal, label_of, split
from fspo.runtime import quiet

if TYPE_CHECKING:
    from fspo.config import TrainConfig

console = Terminal()


class Engine(enum.StrEnum):
    """The trainer that runs a configuration."""

    local = "local"
    trl = "trl"
    verl = "verl"


def train(
    arguments: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="folder of the run; default: runs/TASK-OBJECTIVE-SEED")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on with the run in this folder, from its saved configuration")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="with --resume: take settings that make it another run")
    ] = False,
    report: Annotated[bool, typer.Option(help="write report.html at the end")] = True,
    engine: Annotated[Engine, typer.Option(help="the trainer that runs the configuration")] = Engine.local,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="write what the engine would be given, and stop")] = False,
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
    if engine is Engine.verl and not dry_run:
        from fspo.engines.checkup import require_verl

        require_verl()
    if engine is Engine.local and not dry_run:
        from fspo.training import processes

        processes.ahead(config)
    quiet()
    if dry_run:
        print(_described(config, folder, engine))
        return
    from fspo import api
    from fspo.cli.display import Display
    from fspo.training.stopping import RunInterruptedError

    summary = {"model": config.model.path, "task": label_of(config), "objective": config.objective["name"]}
    again = shlex.join(["fspo", "train", "--out", str(folder), "--resume"])
    again += f" --engine {engine.value}" if engine is not Engine.local else ""
    try:
        with Display(summary | {"folder": str(folder)}, config.steps) as display:
            api.train(config, folder, resume=resume, force=force, engine=engine.value, observer=display)
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


def warmup(arguments: Overrides = None) -> None:
    """Fine-tune a tiny model on worked solutions until it solves a wanted share, and print where it is kept.

    `fspo train` does this by itself where `warmup` is set; the result is kept and serves later runs.

    [dim]fspo warmup task=sort warmup.solved=0.25[/]
    """
    quiet()
    from fspo import tasks
    from fspo.config import read
    from fspo.training.warmup import warm_start

    config = read(*split(arguments))
    if config.warmup is None:
        raise ValueError("the configuration has no warmup: add for example warmup.solved=0.25")
    errors = Terminal(stderr=True)

    def progress(done: int, total: int, solved: float) -> None:
        errors.print(f"step {done} of at most {total}: {solved:.1%} solved")

    print(warm_start(config, tasks.get(config.task), progress))


def _configured(arguments: list[str] | None, out: Path | None, resume: bool) -> tuple[TrainConfig, Path]:
    """The configuration and the folder of a run; one that is resumed starts from its own saved configuration."""
    from fspo.config import read

    path, overrides = split(arguments)
    if not resume:
        config = read(path, overrides)
        return config, out or Path("runs") / f"{label_of(config)}-{config.objective['name']}-{config.seed}"
    if path is not None:
        raise ValueError(f"a resumed run has its own configuration: leave {path!r} out, or give single settings")
    if out is None:
        raise ValueError("--resume needs the folder of the run: add --out FOLDER")
    if not (out / "config.yaml").is_file():
        raise ValueError(f"there is no run to resume in {out}: it has no config.yaml")
    return read(out / "config.yaml", overrides), out


def _described(config: TrainConfig, folder: Path, engine: Engine) -> str:
    if engine is not Engine.local:
        return str(import_module(f"fspo.engines.{engine.value}.run").dry_run(config, folder))
    import yaml

    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
