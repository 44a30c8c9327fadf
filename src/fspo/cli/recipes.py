"""The command `recipes`: the configurations that are part of the package."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from fspo.cli.terminal import Terminal

console = Terminal()


def recipes(name: Annotated[str | None, typer.Argument(help="print this recipe")] = None) -> None:
    """List the recipes, or print one. `recipe:NAME` stands for its file in every command.

    [dim]fspo recipes[/]
    [dim]fspo recipes gsm8k-24gb[/]
    [dim]fspo train recipe:gsm8k-24gb steps=50 --out runs/gsm8k[/]
    """
    from fspo import recipes as library

    if name is not None:
        print(library.located(f"recipe:{name.removeprefix('recipe:')}").read_text(), end="")
        return
    table = Table("recipe", "engines", "what it trains")
    for key in library.names():
        table.add_row(key, library.note(key, "engines"), Text(library.summary(key)))
    console.print(table)
