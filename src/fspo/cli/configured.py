"""What several subcommands do with their arguments: a configuration file, settings, and the folder of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fspo.config import TrainConfig

Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="a YAML or TOML file first, then settings such as update.lr=2e-4 or objective.name=gspo"),
]


def split(arguments: list[str] | None) -> tuple[str | None, list[str]]:
    """A configuration file, if the first argument is one, and the settings after it."""
    values = list(arguments or [])
    path = values.pop(0) if values and "=" not in values[0] else None
    return path, values


def label_of(config: TrainConfig) -> str:
    """The name of the task, as part of a folder's name."""
    from fspo import tasks

    return tasks.get(config.task).label.replace(":", "-").replace("/", "-")
