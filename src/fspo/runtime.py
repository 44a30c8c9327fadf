"""Settings of the process that decide speed on a CPU: threads, how they wait, and how memory is returned."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import signal
import sys
from pathlib import Path

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""What asks a run to stop: Ctrl-C, the end of a cluster job, a lost terminal."""

# Iterations that an idle OpenMP thread spins before it sleeps. By default it spins for milliseconds and keeps its core
# busy: with another process on the machine, a training step was measured ten times as slow.
SPIN = "2000"

SMALL = 5_000_000  # parameters below which products are too short to be divided among the threads of one process
MOST_PROCESSES = 8
PROMPTS_EACH = 4  # of a rollout, at least, for each process


def prepare() -> None:
    """Call before torch is first imported: OpenMP reads its environment once. The user's own settings are kept."""
    if "torch" in sys.modules or "OMP_WAIT_POLICY" in os.environ:
        return
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN)


def python_command(code: str) -> list[str]:
    """The command of another Python process that imports from the same path as this one and executes `code`."""
    return [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"]


def threads(parameters: int, cores: int | None = None, processes: int = 1) -> int:
    """How many threads each of the processes of this machine should compute with.

    Measured on two idle cores, time with two threads over time with one: at 0.8 M parameters 0.62 for an update and 0.8
    for a rollout, at 0.1 M parameters 0.75 and 1.0, at 15,000 parameters 0.9 and 1.15. Results are bit-identical only
    for the same number of threads.
    """
    return 1 if parameters < 50_000 else max(1, (usable_cores() if cores is None else cores) // processes)


def processes(parameters: int | None, prompts: int, cores: int | None = None) -> int:
    """How many processes should train a model of this size (None if unknown) together on this machine's CPU.

    One per core for a small model, as long as each has a few prompts of a rollout; one for a large model, whose
    products are divided among threads at less cost and whose weights are then held once.
    """
    if parameters is None or parameters >= SMALL:
        return 1
    return max(1, min(usable_cores() if cores is None else cores, MOST_PROCESSES, prompts // PROMPTS_EACH))


def parameters(path: str) -> int | None:
    """About the size of a model, without loading it; None where that takes a download or a conversion."""
    if preset := re.fullmatch(r"tiny:(\d+)x(\d+)", path):
        return int(preset[1]) * 12 * int(preset[2]) ** 2  # see `fspo.model.tiny`, which takes seconds to import
    files = list(Path(path).glob("*.safetensors")) if Path(path).is_dir() else []
    return sum(file.stat().st_size for file in files) // 4 if files else None  # 4 bytes per parameter in float32


def usable_cores() -> int:
    """Logical cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def sampling_threads(parameters: int, threads: int) -> int:
    """How many of `threads` a rollout should be sampled with.

    Sampling one token of a small model takes hundreds of matrix products of 0.1 ms each, and the threads wait for each
    other after every product. At 0.8 M parameters two threads save a fifth of a rollout's time on two idle cores, and
    double it when another program occupies one of them (1.4 s against 0.7 s).
    """
    return 1 if parameters < SMALL else threads


def quiet() -> None:
    """Switch off the progress bars and warnings of transformers, which would break the display."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


def keep_heap() -> bool:
    """Let the C library keep freed memory instead of returning each large tensor to the system; True if it does.

    The activations of one update are freed and allocated again at once. Without this setting each of them is unmapped,
    mapped and zeroed again, which takes 8 % of an update's time on a small model. Only glibc has the setting; elsewhere
    this does nothing.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    trim_threshold, mmap_max = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX of malloc.h
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(mmap_max, 0)) and bool(mallopt(trim_threshold, 2**31 - 1))
