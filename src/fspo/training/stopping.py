"""How a run ends before its last step: a signal lets the step finish and be saved; a full disk is one sentence."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fspo.runs import Observer
from fspo.runtime import SIGNALS

ECHO = 0.5  # seconds after a signal in which another one is the same request
_UNWRITABLE = (errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EACCES, errno.EPERM)


class RunInterruptedError(Exception):
    """A signal asked the run to stop; it is saved up to `step`."""

    def __init__(self, step: int, signal_number: int = signal.SIGINT) -> None:
        super().__init__(f"stopped after step {step}")
        self.step, self.signal_number = step, int(signal_number)


class RunWriteError(ValueError):
    """The run folder cannot be written; the message says what is saved."""


@contextmanager
def interrupts(observer: Observer) -> Iterator[Callable[[], int]]:
    """The number of the signal that asked the run to stop, or 0. A second Ctrl-C stops at once.

    A signal that is ignored at the start (`nohup`) stays ignored. `timeout` and `uv run` may send one request twice.
    """
    asked: list[int] = []
    first = 0.0

    def handle(number: int, frame: Any) -> None:
        nonlocal first
        if asked:
            if number == signal.SIGINT and time.monotonic() - first > ECHO:
                raise KeyboardInterrupt
            return
        first = time.monotonic()
        asked.append(number)
        with suppress(OSError, RuntimeError):  # the terminal is closed, or this interrupts another write to it
            observer.note("finishing this step, then saving; press Ctrl-C again to stop at once")

    try:
        heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, handle) for number in heeded}
    except ValueError:  # not the main thread, which alone may handle signals
        yield lambda: 0
        return
    try:
        yield lambda: asked[0] if asked else 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """A full or read-only disk raises a RunWriteError of one sentence."""
    import polars
    from safetensors import SafetensorError

    from fspo.training import checkpoint

    try:
        yield
    except (OSError, SafetensorError, polars.exceptions.PolarsError) as error:
        # Libraries that write in other languages give only the system's text.
        reason = next((os.strerror(code) for code in _UNWRITABLE if os.strerror(code) in str(error)), None)
        file = Path(getattr(error, "filename", None) or folder).absolute()
        if reason is None or not (file.is_relative_to(folder.absolute()) or folder.absolute().is_relative_to(file)):
            raise
        saved = checkpoint.steps(folder / "checkpoints") if folder.is_dir() else []
        kept = f"the run is saved up to step {saved[-1]}" if saved else "nothing is saved yet"
        raise RunWriteError(
            f"{folder} cannot be written ({reason}); {kept}: fix that, then go on with --resume"
        ) from None
