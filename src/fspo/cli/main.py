"""The `fspo` command: every subcommand, and how an expected failure is shown.

Heavy libraries are imported by the subcommand that needs them, so that help is instant.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import warnings
from typing import Annotated, Any, NoReturn

import typer

from fspo import __version__
from fspo.cli import Terminal
from fspo.cli.audit import audit
from fspo.cli.compare import compare
from fspo.cli.listing import methods, recipes, tasks
from fspo.cli.runs import evaluate, explore, export, report, train, watch
from fspo.runtime import prepare

# Packages of `fspo[train]`: a command that needs one of them says so.
TRAINING = ("torch", "transformers", "tokenizers", "safetensors", "peft", "gguf", "psutil", "huggingface_hub")

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
            stream.reconfigure(errors="backslashreplace")  # a log that cannot hold a character does not end a run
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
        _fail(f"{name} cannot be used ({error.strerror}): give another path, or mend its permissions or disk")
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
