"""The `fspo` command: every subcommand, and how an expected failure is shown.

Heavy libraries are imported by the subcommand that needs them, so that help is instant.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from fspo import __version__
from fspo.cli.audit import audit
from fspo.cli.compare import compare
from fspo.cli.doctor import doctor
from fspo.cli.evaluate import evaluate, sample
from fspo.cli.listing import methods, tasks
from fspo.cli.plan import plan
from fspo.cli.recipes import recipes
from fspo.cli.report import explore, report, watch
from fspo.cli.train import train, warmup
from fspo.runtime import prepare
from fspo.text import visible

app = typer.Typer(
    name="fspo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command()(train)
app.command()(warmup)
app.command(name="eval")(evaluate)
for command in (sample, report, watch, explore, audit, compare, methods, tasks, recipes, plan, doctor):
    app.command()(command)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="print the version and stop")
    ] = False,
) -> None:
    """Length-fair reinforcement learning from verifiable rewards for language models."""


def main() -> None:
    """Run the command; an expected failure is one sentence on standard error and exit code 2."""
    prepare()
    sys.path.append(os.getcwd())  # a user's own rewards and tasks; at the end, so that nothing is shadowed
    try:
        app()
    except (ValueError, FloatingPointError, FileNotFoundError) as error:
        message = Text.assemble(("error:", "bold red"), " ", visible(error))
        Console(stderr=True).print(message, highlight=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
