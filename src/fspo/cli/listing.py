"""The commands that say what there is: `methods`, `tasks` and `recipes`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from fspo.cli import Terminal
from fspo.text import visible

if TYPE_CHECKING:
    from fspo.settings import Settings

console = Terminal()


def methods(name: Annotated[str | None, typer.Argument(help="show this objective's parameters")] = None) -> None:
    """List the objectives, or every parameter of one.

    [dim]fspo methods[/]
    [dim]fspo methods fspo[/]
    """
    from fspo import objectives

    if name is None:
        _list("objective", "what it does", objectives.summaries())
    else:
        chosen = objectives.get_class(name)
        _describe(name, chosen.summary, chosen)


def tasks(
    name: Annotated[str | None, typer.Argument(help="show this task's parameters, and its first prompts")] = None,
) -> None:
    """List the tasks, or every parameter of one with its first prompts.

    [dim]fspo tasks[/]
    [dim]fspo tasks sort[/]
    """
    from fspo import tasks as library

    if name is None:
        _list("task", "what it asks", library.summaries())
        return
    chosen = library.get_class(name)
    _describe(name, chosen.summary, chosen)
    try:
        task = library.get(name)
        examples = [task.example("train", i) for i in range(3)]
    except ValueError as error:  # a file or a package that it needs
        console.print(Text(visible(error), style="dim"))
        return
    for example in examples:
        answer = example.answer if example.solution is None else example.solution
        console.print(Text.assemble((visible(example.prompt), "bold"), f"  {visible(answer)}"))


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


def _list(kind: str, what: str, rows: dict[str, str]) -> None:
    table = Table(kind, what)
    for key, summary in rows.items():
        table.add_row(Text(visible(key)), Text(visible(summary)))
    console.print(table)


def _describe(name: str, summary: str, settings: type[Settings]) -> None:
    from fspo.settings import described

    console.print(Text.assemble((visible(name), "bold"), f": {visible(summary)}"))
    table = Table("parameter", "type", "default", "range", "what it is")
    for row in described(settings):
        table.add_row(row.name, Text(row.type), Text(row.default), Text(row.range), Text(row.description))
    console.print(table)
