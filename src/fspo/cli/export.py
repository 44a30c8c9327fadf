"""The command `export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fspo.cli.terminal import Terminal
from fspo.runtime import quiet

console = Terminal()


def export(
    run: Annotated[Path, typer.Argument(help="a run's folder")],
    out: Annotated[Path, typer.Argument(help="a new folder for the model")],
    merge: Annotated[bool, typer.Option("--merge", help="add LoRA adapters to the weights of their model")] = False,
    push_to_hub: Annotated[
        str | None, typer.Option(metavar="NAME", help="upload it to the Hugging Face hub under this name, as private")
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="with --push-to-hub: everyone may see it")] = False,
) -> None:
    """Write a run's final weights and tokenizer as a model folder, with a model card of the run's figures.

    [dim]fspo export runs/mine models/mine[/]
    [dim]fspo export runs/lora models/lora --merge[/]
    [dim]fspo export runs/mine models/mine --push-to-hub me/mine[/]
    """
    quiet()
    from fspo.api import export as write
    from fspo.api import push

    console.say(f"model: {write(run, out, merge=merge)}")
    if push_to_hub is not None:
        console.say(f"uploaded: {push(out, push_to_hub, private=not public)}")
