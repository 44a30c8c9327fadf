"""The terminal that the commands print to: text of models, files and users is shown, never obeyed."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from fspo.text import visible

__all__ = ["Terminal"]


class Terminal(Console):
    """A console that reads no markup and no emoji codes; `say` also makes control characters visible."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False)

    def on_broken_pipe(self) -> None:
        """Whoever read the output is gone: go on without it, where rich would end the command and with it a run."""
        self.quiet = True

    def say(self, text: str, strong: str = "", *, head: str = "") -> None:
        """A line after a coloured `head` such as `error:`, with an emphasised end."""
        parts = ((head, "bold red" if head == "error: " else "yellow"), visible(text), (visible(strong), "bold"))
        self.print(Text.assemble(*parts), soft_wrap=True, highlight=False)
