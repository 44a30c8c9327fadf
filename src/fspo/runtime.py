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
    """How many threads each of the processes of this machine should compute with; results are bit-identical only for
    the same number. Two threads slow down rollouts of models of 15,000 parameters."""
    return 1 if parameters < 50_000 else max(1, (usable_cores() if cores is None else cores) // processes)


def processes(parameters: int | None, prompts: int, cores: int | None = None) -> int:
    """How many processes should train a model of this size (None if unknown) together on this machine's CPU: one per
    core for a small model, as long as each has a few prompts; one for a large model, whose weights are held once."""
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
    """How many of `threads` a rollout should be sampled with. Threads wait for each other after every product: with
    0.8 M parameters two save a fifth of the time on idle cores, and double it beside another program."""
    return 1 if parameters < SMALL else threads


def quiet() -> None:
    """Switch off the progress bars and warnings of transformers, which would break the display."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


def keep_heap() -> bool:
    """Let the C library keep freed memory, where it can (glibc); True if it does. Returning the activations of every
    update to the system, and zeroing them again, takes 8 % of an update's time on a small model."""
    if platform.libc_ver()[0] != "glibc":
        return False
    trim_threshold, mmap_max = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX of malloc.h
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(mmap_max, 0)) and bool(mallopt(trim_threshold, 2**31 - 1))
