"""The `fspo` command: its subcommands, the lists of what there is, and how an expected failure is shown.

Heavy libraries are imported by the subcommand that needs them, so that help is instant.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import warnings
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.table import Column, Table
from rich.text import Text

from fspo import __version__
from fspo.cli import Terminal
from fspo.cli.compare import compare
from fspo.cli.runs import audit, evaluate, explore, export, report, train, watch
from fspo.runtime import prepare
from fspo.text import visible

if TYPE_CHECKING:
    from fspo.settings import Settings

console = Terminal()

# Packages of `fspo[train]`: a command that needs one of them says so.
TRAINING = ("torch", "transformers", "tokenizers", "safetensors", "peft", "gguf", "psutil", "huggingface_hub")


# --- what there is ----------------------------------------------------------------------------------------------------


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
    table = Table(_name("recipe"), "engines", "what it trains")
    for key in library.names():
        table.add_row(key, library.note(key, "engines"), Text(library.summary(key)))
    console.print(table)


def _name(title: str) -> Column:
    """The column of names, which are not broken over lines."""
    return Column(title, no_wrap=True)


def _list(kind: str, what: str, rows: dict[str, str]) -> None:
    table = Table(_name(kind), what)
    for key, summary in rows.items():
        table.add_row(Text(visible(key)), Text(visible(summary)))
    console.print(table)


def _describe(name: str, summary: str, settings: type[Settings]) -> None:
    from fspo.settings import described

    console.print(Text.assemble((visible(name), "bold"), f": {visible(summary)}"))
    table = Table(_name("parameter"), "type", "default", "range", "what it is")
    for row in described(settings):
        table.add_row(row.name, Text(row.type), Text(row.default), Text(row.range), Text(row.description))
    console.print(table)


# --- the command ------------------------------------------------------------------------------------------------------

app = typer.Typer(name="fspo", no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich")
app.command()(train)
app.command(name="eval")(evaluate)
for command in (export, report, watch, explore, audit, compare, methods, tasks, recipes):
    app.command()(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"fspo {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and stop")
    ] = False,
) -> None:
    """Length-fair reinforcement learning from verifiable rewards for language models.

    [dim]fspo train --out runs/mine[/]   train a tiny model, in minutes
    [dim]fspo audit runs/mine[/]   how fair its clipping was, and which band to use
    [dim]fspo report runs/mine[/]   its page
    """


def main() -> None:
    """Run the command; an expected failure is one sentence on standard error and exit code 2."""
    prepare()
    _show_own_warnings()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a character that a log cannot encode does not end a run
    sys.path.append(os.getcwd())  # a user's own rewards and tasks; at the end, so that nothing is shadowed
    try:
        app()
    except (ValueError, FloatingPointError) as error:
        _fail(str(error))
    except OSError as error:
        if error.errno is None:  # a sentence of this package
            _fail(str(error))
        if error.filename is None and error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        name = error.filename or "the output of this command"
        _fail(f"{name} cannot be used ({error.strerror}): give another path, or fix its permissions or disk")
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in TRAINING:
            raise
        _fail(f"this command needs the package {name}, which is not installed: pip install 'fspo[train]'")


def _show_own_warnings() -> None:
    """Warnings of this package are lines for the user; those of others keep Python's form."""
    others = warnings.showwarning

    def show(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        if category.__module__.startswith("fspo."):
            Terminal(stderr=True).say(str(message), head="warning: ")
        else:
            others(message, category, filename, lineno, file, line)

    warnings.showwarning = show


def _fail(sentence: str) -> NoReturn:
    Terminal(stderr=True).say(sentence, head="error: ")
    sys.exit(2)


if __name__ == "__main__":
    main()
