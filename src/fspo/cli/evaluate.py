"""The commands `eval` and `sample`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from fspo.cli.terminal import Terminal
from fspo.runtime import quiet
from fspo.text import visible

if TYPE_CHECKING:
    from fspo.api import Conversation
    from fspo.runs import Rate, RateBin
    from fspo.training.evaluate import Answer

console = Terminal()

Model = Annotated[str, typer.Argument(help="a run's folder, a checkpoint, a model folder or hub name, or a .gguf")]
Trust = Annotated[bool, typer.Option("--trust", help="import the Python code that the run's configuration names")]
Settings = Annotated[list[str] | None, typer.Argument(help="settings such as task=add")]


def evaluate(
    model: Model,
    arguments: Settings = None,
    prompts: Annotated[int | None, typer.Option(help="held-out prompts; default: the run's eval.prompts")] = None,
    samples: Annotated[
        int | None, typer.Option(help="answers per prompt, above 1 for avg@k and pass@k; default: the run's")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="0 is greedy; default: the run's eval.temperature, which is 1 if not set")
    ] = None,
    top_p: Annotated[float | None, typer.Option(help="nucleus sampling, for evaluation only")] = None,
    top_k: Annotated[int | None, typer.Option(help="top-k sampling, for evaluation only")] = None,
    split: Annotated[str | None, typer.Option(help="train, validation or eval; default: the run's eval.split")] = None,
    json_out: Annotated[
        str | None, typer.Option("--json", metavar="[PATH]", help="write the figures here; alone: to standard output")
    ] = None,
    trust: Trust = False,
) -> None:
    """Accuracy of a model on a task, with intervals, by length and by difficulty.

    A run is evaluated as it was during training: the same prompts, temperature and number of answers.

    [dim]fspo eval runs/mine[/]
    [dim]fspo eval runs/mine --samples 8 --prompts 64[/]   pass@k
    [dim]fspo eval runs/mine task=count --temperature 0 --json[/]   another task, greedy
    """
    quiet()
    from fspo import api
    from fspo.config import tables
    from fspo.runs import unscored_warnings

    found = api.evaluate(
        model, tables(arguments or []), prompts=prompts, samples=samples, temperature=temperature, top_p=top_p,
        top_k=top_k, split=split, trust=trust,
    )  # fmt: skip
    if json_out is not None:
        from fspo.files import json_text, replace_file

        text = json_text(found.line(0).model_dump(exclude={"step"}), indent=1)
        if json_out == "-":
            print(text)
            return
        replace_file(json_out, text)
    low, high = found.interval
    accuracy = f"{found.accuracy:.1%}" if found.unscored < len(found.answers) else "unknown"
    console.print(f"{found.prompts} prompts x {found.samples}: accuracy {accuracy} ({low:.1%} to {high:.1%})")
    for k, value in found.pass_at.items() if found.samples > 1 else ():
        low, high = found.pass_at_interval[k]
        console.print(f"pass@{k} {value:.1%} ({low:.1%} to {high:.1%})")
    if found.unscored or found.truncated:
        console.print(f"{found.unscored} not scored, {found.truncated:.1%} truncated")
    for warning in unscored_warnings(found.line(0)).values():
        console.print(Text(visible(warning)))
    for name, bins in (("length", found.by_length), ("difficulty", found.by_difficulty)):
        _print_rates(name, ((f"{b.low:g} to {b.high:g}", b) for b in bins))
    if len(found.by_task) > 1:
        _print_rates("task", found.by_task.items())


def _print_rates(name: str, rows: Iterable[tuple[str, Rate | RateBin]]) -> None:
    table = Table(name, "answers", "accuracy", "95 % interval")
    for label, rate in rows:
        low, high = rate.interval
        table.add_row(Text(visible(label)), str(rate.count), f"{rate.accuracy:.1%}", f"{low:.1%} to {high:.1%}")
    console.print(table)


def sample(
    model: Model,
    arguments: Settings = None,
    prompts: Annotated[int, typer.Option(help="held-out prompts to show")] = 5,
    prompt: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="answer this text instead; may be given several times")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="answer what is typed, line by line, until Ctrl-D")] = False,
    samples: Annotated[int, typer.Option(help="answers per prompt")] = 1,
    temperature: Annotated[float, typer.Option(help="0 is greedy")] = 1.0,
    split: Annotated[str | None, typer.Option(help="train, validation or eval; default: the run's eval.split")] = None,
    trust: Trust = False,
) -> None:
    """Show what a model answers, with the reward of each answer.

    [dim]fspo sample runs/mine --prompts 3 --samples 4[/]
    [dim]fspo sample runs/mine --prompt sort:dbca= --temperature 0[/]   a prompt of your own
    [dim]fspo sample runs/mine --chat[/]   a conversation, if the model has a chat template
    """
    quiet()
    from fspo import api
    from fspo.config import tables

    if chat:
        _converse(api.Conversation(model, tables(arguments or []), temperature=temperature, trust=trust))
        return
    asked: int | list[str] = prompt or prompts
    found = api.sample(
        model, asked, tables(arguments or []), samples=samples, temperature=temperature, split=split, trust=trust
    )
    for i, answer in enumerate(found):
        if i % samples == 0:
            console.print(Text(visible(answer.prompt), style="bold"))
        reward = [] if prompt else ["not scored" if answer.reward is None else f"reward {answer.reward:g}"]
        _print_answer(answer, reward)


def _converse(conversation: Conversation) -> None:
    """Answer each line of standard input; a text that the model cannot read is no reason to end."""
    prompt = "> " if sys.stdin.isatty() else ""
    while True:
        try:
            text = input(prompt)
        except (EOFError, KeyboardInterrupt):
            console.print()
            return
        if not text.strip():
            continue
        try:
            _print_answer(conversation.say(text))
        except ValueError as error:
            console.print(Text(visible(error)))


def _print_answer(answer: Answer, facts: list[str] | None = None) -> None:
    facts = [*(facts or []), f"{answer.length} tokens", *(["truncated"] if answer.truncated else [])]
    console.print(Text(f"  {visible(answer.completion)}"), Text(f"  {', '.join(facts)}", style="dim"))
