"""Settings of the process that decide speed on a CPU: threads, how they wait, and how memory is returned."""

from __future__ import annotations

import ctypes
import os
import platform
import sys

SPIN = "2000"
"""Turns an idle OpenMP thread spins before it sleeps. The default spins for milliseconds, which takes the
core from whoever holds the work when another process wants it: a step was then measured ten times as slow."""


def prepare() -> None:
    """Call before torch is first imported: OpenMP reads its environment once. What the user has set stays."""
    if "torch" in sys.modules or "OMP_WAIT_POLICY" in os.environ:
        return
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN)


def threads(parameters: int, cores: int | None = None) -> int:
    """How many threads one process should compute with.

    Measured on two quiet cores, time with two threads over time with one: at 0.8 M parameters 0.62 for an
    update and 0.8 for a rollout, at 0.1 M parameters 0.75 and 1.0, at 15,000 parameters 0.9 and 1.15. Results
    are the same to the bit only for the same number of threads.
    """
    return 1 if parameters < 50_000 else max(1, usable_cores() if cores is None else cores)


def usable_cores() -> int:
    """Logical cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def sampling_threads(parameters: int, threads: int) -> int:
    """How many of `threads` one sampled token should be computed with.

    A token of a small model is hundreds of products of 0.1 ms each, and all threads wait for the last one at
    every product. At 0.8 M parameters two threads save a fifth of a rollout's time on two quiet cores, and
    double it when another program holds one of them (1.4 s against 0.7 s).
    """
    return 1 if parameters < 5_000_000 else threads


def quiet() -> None:
    """Libraries' own progress bars would tear the display."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


def keep_heap() -> bool:
    """Let the C library keep freed memory instead of handing each large tensor back to the system.

    Activations of one update are freed and wanted again at once; without this every one of them is unmapped,
    mapped and zeroed anew: 8 % of an update's time on a small model. Only glibc has the switch; elsewhere
    nothing happens.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    trim_threshold, mmap_max = -1, -4  # names of malloc.h
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(mmap_max, 0)) and bool(mallopt(trim_threshold, 2**31 - 1))
