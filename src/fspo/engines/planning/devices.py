"""Devices to plan for: memory, speed of bfloat16 products, and memory bandwidth, as their makers state them."""

from __future__ import annotations

from dataclasses import dataclass

from fspo.settings import hint


@dataclass(frozen=True)
class Device:
    """What one device has."""

    memory_gib: float
    tflops: float  # dense bfloat16 products with float32 sums
    bandwidth: float  # GB/s


DEVICES = {
    "3090": Device(24, 71, 936),
    "4090": Device(24, 165, 1008),
    "5090": Device(32, 210, 1792),
    "a10": Device(24, 125, 600),
    "l40s": Device(48, 362, 864),
    "a100-40gb": Device(40, 312, 1555),
    "a100-80gb": Device(80, 312, 2039),
    "h100": Device(80, 989, 3350),
    "h200": Device(141, 989, 4800),
}


def device_of(name: str, memory_gib: float | None, tflops: float | None, bandwidth: float | None) -> Device:
    """A device by name, with any of its figures replaced."""
    if name not in DEVICES:
        raise ValueError(f"there is no device {name!r}{hint(name, DEVICES)}")
    known = DEVICES[name]
    return Device(memory_gib or known.memory_gib, tflops or known.tflops, bandwidth or known.bandwidth)
