"""The `fspo` command, and what its subcommands share: the terminal that they print to, and arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from fspo.text import visible

if TYPE_CHECKING:
    from fspo.config import TrainConfig

__all__ = ["JsonOut", "Overrides", "Terminal", "Trust", "label_of", "split", "write_json"]

Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="a YAML file first, then settings such as update.lr=2e-4 or objective.name=gspo"),
]
Trust = Annotated[bool, typer.Option("--trust", help="import the Python code that the run's configuration names")]
JsonOut = Annotated[
    str | None, typer.Option("--json", metavar="[PATH]", help="write all figures here; alone: to standard output")
]


class Terminal(Console):
    """A console that reads no markup and no emoji codes; `say` also makes control characters visible."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False)

    def on_broken_pipe(self) -> None:
        """The reader of the output has gone: go on without it, where rich would end the command and with it a run."""
        self.quiet = True

    def say(self, text: str, strong: str = "", *, head: str = "") -> None:
        """A line after a coloured `head` such as `error:`, with an emphasised end."""
        parts = ((head, "bold red" if head == "error: " else "yellow"), visible(text), (visible(strong), "bold"))
        self.print(Text.assemble(*parts), soft_wrap=True, highlight=False)


def split(arguments: list[str] | None) -> tuple[str | None, list[str]]:
    """A configuration file, if the first argument is one, and the settings after it."""
    values = list(arguments or [])
    path = values.pop(0) if values and "=" not in values[0] else None
    return path, values


def label_of(config: TrainConfig) -> str:
    """The name of the task, as part of a folder's name."""
    from fspo import tasks

    return tasks.get(config.task).label.replace(":", "-").replace("/", "-")


def write_json(value: Any, path: str) -> None:
    """Write a value as JSON to a file, or to standard output if the path is `-`."""
    from fspo.files import json_text, replace_file

    if path == "-":
        print(json_text(value, indent=1))
    else:
        replace_file(path, json_text(value, indent=1))
