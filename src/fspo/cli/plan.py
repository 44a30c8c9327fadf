"""The command `plan`: memory and time of a configuration on a device, without loading its model."""

from __future__ import annotations

from typing import Annotated

import typer

from fspo.cli.configured import Overrides, split
from fspo.text import visible


def plan(
    arguments: Overrides = None,
    engine: Annotated[str, typer.Option(help="local, trl or verl")] = "local",
    device: Annotated[str, typer.Option(help="3090, 4090, 5090, a10, l40s, a100-40gb, a100-80gb, h100, h200")] = "4090",
    devices: Annotated[int, typer.Option(min=1, help="devices that train together")] = 1,
    sharded: Annotated[bool, typer.Option("--sharded", help="TRL under FSDP or ZeRO-3")] = False,
    prompt: Annotated[int, typer.Option(min=1, help="tokens of a prompt")] = 256,
    mean: Annotated[int | None, typer.Option(min=1, help="tokens of an answer; default: half of the longest")] = None,
    memory_gib: Annotated[float | None, typer.Option(help="memory of the device, in place of the table's")] = None,
    tflops: Annotated[float | None, typer.Option(help="bfloat16 products, in place of the table's")] = None,
    bandwidth: Annotated[float | None, typer.Option(help="GB/s, in place of the table's")] = None,
) -> None:
    """Memory by part and time per step, computed from the model's configuration; exit code 1 if it does not fit.

    [dim]fspo plan recipe:gsm8k-24gb --device 4090[/]
    [dim]fspo plan recipe:qwen3-8b-math --engine verl --device h100 --devices 8[/]
    [dim]fspo plan my.yaml --memory-gib 16 --tflops 40 --bandwidth 300[/]
    """
    from fspo.config import read
    from fspo.engines.planning import planner
    from fspo.engines.planning.devices import device_of
    from fspo.settings import hint

    if engine not in planner.ENGINES:
        raise ValueError(f"there is no engine {engine!r}{hint(engine, planner.ENGINES)}")
    figures = device_of(device, memory_gib, tflops, bandwidth)
    name = "the given device" if None not in (memory_gib, tflops, bandwidth) else device
    place = planner.Situation(engine, figures, name, devices, sharded, prompt, mean)
    config = read(*split(arguments))
    found = planner.plan(config, place)
    print(f"{visible(config.model.path)}: {found.shape.parameters / 1e9:.2f} B parameters")
    print(found.text())
    print(planner.ASSUMED)
    if not found.fits:
        raise typer.Exit(1)
