"""How a run ends before its last step: a signal lets the step finish and be saved."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from fspo.runs import Observer
from fspo.runtime import SIGNALS

ECHO = 0.5  # seconds after a signal in which another one is the same request


class RunInterruptedError(Exception):
    """A signal asked the run to stop; it is saved up to `step`."""

    def __init__(self, step: int, signal_number: int = signal.SIGINT) -> None:
        super().__init__(f"stopped after step {step}")
        self.step, self.signal_number = step, int(signal_number)


@contextmanager
def interrupts(observer: Observer) -> Iterator[Callable[[], int]]:
    """The number of the signal that asked the run to stop, or 0. A second Ctrl-C stops at once.

    A signal that is ignored when the run starts (`nohup`, a shell's background job) stays ignored. The same request may
    arrive twice: `timeout` and `uv run` send a signal that the whole process group gets too.
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
        with suppress(OSError, RuntimeError):  # the terminal is gone, or this interrupts another write to it
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
