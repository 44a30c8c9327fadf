"""The commands `methods` and `tasks`: what there is to choose from."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

console = Console()


def methods(name: Annotated[str | None, typer.Argument(help="show one method's parameters")] = None) -> None:
    """List the objectives, or the parameters of one."""
    from fspo import objectives

    if name is None:
        table = Table("objective", "what it does")
        for key in objectives.names():
            table.add_row(key, Text(objectives.get_class(key).summary))
        console.print(table)
        return
    chosen = objectives.get_class(name)
    console.print(Text.assemble((name, "bold"), f": {chosen.summary}"))
    table = Table("parameter", "default", "what it is")
    for key, field in chosen.model_fields.items():
        table.add_row(key, Text(str(field.default)), Text(field.description or ""))
    console.print(table)


def tasks() -> None:
    """List the tasks."""
    from fspo import tasks as library

    table = Table("task", "what it asks")
    for key, summary in library.summaries().items():
        table.add_row(key, Text(summary))
    console.print(table)
