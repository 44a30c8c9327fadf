"""The progress of a running suite: cells done, time left, and a line per finished cell."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from fspo.comparisons.plan import Job, Row

__all__ = ["SuiteProgress"]


class SuiteProgress:
    """Shows a progress bar in a terminal and plain lines elsewhere, and adds up the time of the workers."""

    def __init__(self, console: Console, done: int, total: int, workers: int) -> None:
        self.console, self.done, self.total, self.workers = console, done, total, workers
        self.seconds = self.cpu_seconds = self._of_cells = 0.0
        self._cells = 0
        self._began = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.completed} of {task.total} cells"), BarColumn(), TextColumn("{task.fields[left]}"),
            console=console, disable=not console.is_terminal, transient=True,
        )  # fmt: skip
        self._task = self._bar.add_task("", total=total, completed=done, left="")

    def __enter__(self) -> SuiteProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def started(self, job: Job) -> None:
        """Shown when it is finished."""

    def finished(self, job: Job, row: Row | None, seconds: float) -> None:
        """Print one line per job."""
        self.seconds += seconds
        if row is None:
            self.console.print(f"{job}: ready after {seconds:.1f} s", highlight=False, soft_wrap=True)
            return
        self.done += 1
        self._cells += 1
        self._of_cells += seconds
        self.cpu_seconds += row["cpu_seconds"]
        self._bar.update(self._task, completed=self.done, left=self._left())
        result = row["error"] if row["status"] == "failed" else f"{row['start']:.1%} to {row['final']:.1%}"
        line = f"{self.done} of {self.total}: {job}: {result} ({seconds:.1f} s)"
        self.console.print(
            line if self.console.is_terminal else f"{line}, {self._left()}", highlight=False, soft_wrap=True
        )

    def summary(self) -> str:
        """How busy the workers were."""
        wall = time.monotonic() - self._began
        busy = self.seconds / (self.workers * wall)
        return f"cells took {self.cpu_seconds:.0f} s of CPU, wall {wall:.0f} s, workers busy {busy:.0%}"

    def _left(self) -> str:
        seconds = (self.total - self.done) * self._of_cells / self._cells / self.workers
        hours, minutes = divmod(round(seconds / 60), 60)
        return (
            f"{hours} h {minutes} min left" if hours else f"{minutes} min left" if minutes else f"{seconds:.0f} s left"
        )
