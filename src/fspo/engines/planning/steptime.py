"""Seconds of a training step, from floating-point operations, memory bandwidth and two efficiencies."""

from __future__ import annotations

from dataclasses import dataclass

from fspo.engines.planning.devices import Device
from fspo.engines.planning.shapes import Shape

BUSY = 0.4  # share of a device's products that a forward or backward reaches, as large models usually report
READ = 0.6  # share of its bandwidth that decoding reaches


@dataclass(frozen=True)
class Work:
    """The tokens of a step on one device, and what is done with them."""

    shape: Shape
    answers: int
    prompt: int
    prompts: int  # prompts that an update computes: one per group, or one per answer
    mean: int  # tokens of an answer
    longest: int
    at_once: int  # answers that the sampler's cache holds at mean length
    width: int  # bytes of a value
    forwards: float  # extra forwards per token, for old log-probs
    passes: int  # epochs
    backward: float  # forwards that a backward costs: 2, 1 with frozen weights, 1 more where activations are recomputed


def seconds(work: Work, device: Device) -> dict[str, float]:
    """Sampling, old log-probs and updates; rewards and moving weights are not counted."""
    shape, speed = work.shape, device.tflops * 1e12 * BUSY
    context = work.prompt + work.mean / 2
    forward = 2 * shape.parameters + 4 * shape.layers * shape.query * context  # operations per token
    tokens = work.prompts * work.prompt + work.answers * work.mean
    at_once = max(1, min(work.answers, work.at_once))
    read = (shape.parameters * work.width + at_once * context * shape.cached(work.width)) / (
        device.bandwidth * 1e9 * READ
    )
    tick = max(read, at_once * forward / speed)  # one token of every running answer
    decoding = tick * max(work.longest, work.answers * work.mean / at_once)
    prefill = work.prompts * work.prompt * forward / speed
    return {
        "sampling": decoding + prefill,
        "old log-probs": work.forwards * tokens * forward / speed,
        "updates": work.passes * (1 + work.backward) * tokens * forward / speed,
    }
