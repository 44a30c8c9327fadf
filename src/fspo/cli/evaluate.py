"""The commands `eval` and `sample`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fspo.runtime import quiet
from fspo.text import visible

if TYPE_CHECKING:
    from fspo.runs import Rate, RateBin
    from fspo.training.evaluate import Evaluation

console = Console()

Model = Annotated[str, typer.Argument(help="a run's folder, a checkpoint, a model folder or hub name, or a .gguf")]
Trust = Annotated[bool, typer.Option("--trust", help="import the Python code that the run's configuration names")]
Settings = Annotated[list[str] | None, typer.Argument(help="settings such as task=add")]


def evaluate(
    model: Model,
    arguments: Settings = None,
    prompts: Annotated[int, typer.Option(help="held-out prompts")] = 512,
    samples: Annotated[int, typer.Option(help="answers per prompt; above 1 gives avg@k and pass@k")] = 1,
    temperature: Annotated[float, typer.Option(help="0 is greedy")] = 0.0,
    top_p: Annotated[float | None, typer.Option(help="nucleus sampling, for evaluation only")] = None,
    top_k: Annotated[int | None, typer.Option(help="top-k sampling, for evaluation only")] = None,
    split: Annotated[str, typer.Option(help="train, validation or eval")] = "eval",
    json_out: Annotated[Path | None, typer.Option("--json", help="also write the figures here")] = None,
    trust: Trust = False,
) -> None:
    """Accuracy of a model on a task, with intervals, by length and by difficulty."""
    found = _answers(model, arguments, split, prompts, samples, temperature, top_p, top_k, trust)
    low, high = found.interval
    accuracy = f"{found.accuracy:.1%}" if found.unscored < len(found.answers) else "unknown"
    console.print(f"{found.prompts} prompts x {found.samples}: accuracy {accuracy} ({low:.1%} to {high:.1%})")
    for k, value in found.pass_at.items() if samples > 1 else ():
        low, high = found.pass_at_interval[k]
        console.print(f"pass@{k} {value:.1%} ({low:.1%} to {high:.1%})")
    if found.unscored or found.truncated:
        console.print(f"{found.unscored} not scored, {found.truncated:.1%} truncated")
    from fspo.runs import unscored_warnings

    for warning in unscored_warnings(found.line(0)).values():
        console.print(Text(visible(warning)))
    for name, bins in (("length", found.by_length), ("difficulty", found.by_difficulty)):
        _print_rates(name, ((f"{b.low:g} to {b.high:g}", b) for b in bins))
    if len(found.by_task) > 1:
        _print_rates("task", found.by_task.items())
    if json_out is not None:
        from fspo.files import json_text, replace_file

        replace_file(json_out, json_text(found.line(0).model_dump(exclude={"step"}), indent=1))


def _print_rates(name: str, rows: Iterable[tuple[str, Rate | RateBin]]) -> None:
    table = Table(name, "answers", "accuracy", "95 % interval")
    for label, rate in rows:
        low, high = rate.interval
        table.add_row(Text(visible(label)), str(rate.count), f"{rate.accuracy:.1%}", f"{low:.1%} to {high:.1%}")
    console.print(table)


def sample(
    model: Model,
    arguments: Settings = None,
    prompts: Annotated[int, typer.Option(help="prompts to show")] = 5,
    samples: Annotated[int, typer.Option(help="answers per prompt")] = 1,
    temperature: Annotated[float, typer.Option(help="0 is greedy")] = 1.0,
    split: Annotated[str, typer.Option(help="train, validation or eval")] = "eval",
    trust: Trust = False,
) -> None:
    """Show what a model answers, with the reward of each answer."""
    found = _answers(model, arguments, split, prompts, samples, temperature, None, None, trust)
    for i, answer in enumerate(found.answers):
        if i % samples == 0:
            console.print(Text(visible(answer.prompt), style="bold"))
        reward = "not scored" if answer.reward is None else f"{answer.reward:g}"
        cut = ", truncated" if answer.truncated else ""
        facts = Text(f"  reward {reward}, {answer.length} tokens{cut}", style="dim")
        console.print(Text(f"  {visible(answer.completion)}"), facts)


def _answers(
    model: str,
    arguments: list[str] | None,
    split: str,
    prompts: int,
    samples: int,
    temperature: float,
    top_p: float | None,
    top_k: int | None,
    trust: bool,
) -> Evaluation:
    """Answers of a model to held-out prompts; a run's folder brings its task and its last checkpoint."""
    quiet()
    from fspo import tasks
    from fspo.config import code_named_in, parse, read
    from fspo.model.loading import load, set_threads
    from fspo.tasks.scoring import Scorer
    from fspo.training import checkpoint
    from fspo.training.evaluate import evaluate

    folder = Path(model)
    run = next((p for p in (folder, *folder.parents[:2]) if (p / "config.yaml").is_file()), None)
    if run is not None and not trust and (code := code_named_in(parse(run / "config.yaml"))):
        raise ValueError(
            f"the run in {run} names Python code to import ({', '.join(code)}): add --trust if you trust it"
        )
    config = read(None if run is None else str(run / "config.yaml"), arguments or [])
    if run == folder:
        last = checkpoint.latest(folder / "checkpoints") or folder / "model"  # TRL's
        if not last.is_dir():
            raise ValueError(f"the run in {folder} has no checkpoint yet")
        model = str(last)
    policy = load(model, dtype=config.model.dtype, device=config.model.device)
    set_threads(policy, config.model.threads)
    asked = any(argument.partition("=")[0].split(".")[0] == "task" for argument in arguments or [])
    task = tasks.get(config.task if asked else config.eval_task)
    with Scorer(task, **config.scoring.model_dump()) as scorer:
        return evaluate(
            policy, task, scorer, split=split, prompts=prompts, samples=samples, temperature=temperature,
            max_new_tokens=config.rollout.max_new_tokens, top_p=top_p, top_k=top_k, seed=config.seed,
            chat=config.model.chat,
        )  # fmt: skip
