"""The command `plan`: memory and time of a configuration on a device, without loading its model."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fspo.cli.configured import Overrides, split
from fspo.text import visible

if TYPE_CHECKING:
    from fspo.engines.planning.planner import Situation


def plan(
    context: typer.Context,
    arguments: Overrides = None,
    engine: Annotated[str | None, typer.Option(help="local, trl or verl; default: local")] = None,
    device: Annotated[
        str | None,
        typer.Option(help="3090, 4090, 5090, a10, l40s, a100-40gb, a100-80gb, h100, h200; default: 4090"),
    ] = None,
    devices: Annotated[int | None, typer.Option(min=1, help="devices that train together; default: 1")] = None,
    sharded: Annotated[bool, typer.Option("--sharded", help="TRL under FSDP or ZeRO-3")] = False,
    prompt: Annotated[int | None, typer.Option(min=1, help="tokens of a prompt; default: 256")] = None,
    mean: Annotated[int | None, typer.Option(min=1, help="tokens of an answer; default: half of the longest")] = None,
    memory_gib: Annotated[float | None, typer.Option(help="memory of the device, in place of the table's")] = None,
    tflops: Annotated[float | None, typer.Option(help="bfloat16 products, in place of the table's")] = None,
    bandwidth: Annotated[float | None, typer.Option(help="GB/s, in place of the table's")] = None,
) -> None:
    """Memory by part and time per step, computed from the model's configuration; exit code 1 if it does not fit.

    A recipe without options is planned for the engines and devices that it is written for.

    [dim]fspo plan recipe:gsm8k-24gb[/]
    [dim]fspo plan recipe:qwen3-8b-math --engine verl --device h100 --devices 8[/]
    [dim]fspo plan my.yaml --memory-gib 16 --tflops 40 --bandwidth 300[/]
    """
    from fspo.config import read
    from fspo.engines.planning import planner

    options = {
        "engine": engine, "device": device, "devices": devices, "sharded": sharded, "prompt": prompt, "mean": mean,
        "memory_gib": memory_gib, "tflops": tflops, "bandwidth": bandwidth,
    }  # fmt: skip
    chosen = [] if any(options.values()) else _written_for(context, (arguments or [""])[0])
    path, overrides = split(arguments)
    config = read(path, [*overrides, "task=sort", "eval.task=null"])  # a plan needs no task, which may need an extra
    plans = [planner.plan(config, _situation(**each)) for each in chosen or [options]]
    print(f"{visible(config.model.path)}: {plans[0].shape.parameters / 1e9:.2f} B parameters")
    for found in plans:
        print(found.text())
    print(planner.ASSUMED)
    if not all(found.fits for found in plans):
        raise typer.Exit(1)


def _written_for(context: typer.Context, path: str) -> list[dict[str, Any]]:
    """The options of the plans that a recipe ends with; none for any other file."""
    from fspo import recipes

    kind, _, name = path.partition(":")
    if kind != "recipe":
        return []
    parsed = [context.command.make_context("plan", shlex.split(options)).params for options in recipes.plans(name)]
    return [{key: value for key, value in found.items() if key != "arguments"} for found in parsed]


def _situation(
    *,
    engine: str | None,
    device: str | None,
    devices: int | None,
    sharded: bool,
    prompt: int | None,
    mean: int | None,
    memory_gib: float | None,
    tflops: float | None,
    bandwidth: float | None,
) -> Situation:
    """Where a run is planned for, with the defaults of what is not given."""
    from fspo.engines.planning import planner
    from fspo.engines.planning.devices import device_of
    from fspo.settings import hint

    engine, device = engine or "local", device or "4090"
    if engine not in planner.ENGINES:
        raise ValueError(f"there is no engine {engine!r}{hint(engine, planner.ENGINES)}")
    figures = device_of(device, memory_gib, tflops, bandwidth)
    name = "the given device" if None not in (memory_gib, tflops, bandwidth) else device
    return planner.Situation(engine, figures, name, devices or 1, sharded, prompt or 256, mean)
