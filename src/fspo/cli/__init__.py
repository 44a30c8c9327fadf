"""The `fspo` command, and what its subcommands share: the terminal that they print to, and arguments."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from fspo.text import visible

__all__ = ["JsonOut", "Terminal"]

JsonOut = Annotated[
    str | None, typer.Option("--json", metavar="PATH", help="write all figures here; `-` is standard output")
]


class Terminal(Console):
    """A console that reads no markup and no emoji codes; `say` also makes control characters visible."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False)

    def on_broken_pipe(self) -> None:
        """stdout was closed: keep running, where rich would exit and end the run."""
        self.quiet = True

    def say(self, text: str, strong: str = "", *, head: str = "") -> None:
        """A line after a coloured `head` such as `error:`, with an emphasised end."""
        parts = ((head, "bold red" if head == "error: " else "yellow"), visible(text), (visible(strong), "bold"))
        self.print(Text.assemble(*parts), soft_wrap=True, highlight=False)
