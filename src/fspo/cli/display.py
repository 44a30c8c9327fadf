"""Progress of a run: a bar with the numbers that matter on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from fspo.cli import Terminal
from fspo.runs import ClipBin, Evaluated, Metrics, Observer, Timing
from fspo.text import percent, short, visible

__all__ = ["Display"]

BLOCKS = "▁▂▃▄▅▆▇█"
REDRAWS_PER_SECOND = 2  # by the bar's own thread, so that training does not wait for the terminal


def clip_row(bins: Sequence[ClipBin]) -> str:
    """`4 ▇ 12 █ 30 ▇ 41  up to 12.0 %`: one block per bin of length, between its edges. Equal blocks are fair."""
    top = max(b.clip_rate for b in bins)
    heights = [BLOCKS[round(7 * b.clip_rate / top) if top > 0 else 0] for b in bins]
    parts = [f"{bins[0].low:g}"] + [f"{height} {b.high:g}" for height, b in zip(heights, bins, strict=True)]
    return f"{' '.join(parts)}  up to {percent(top)}"


class Display(Observer):
    """Shows a run's progress: a context manager, and the observer of the run.

    `summary` names the model, task, objective and so on. `every` is the least time in seconds between two plain lines;
    the first and the last step, evaluations and warnings are always printed.
    """

    def __init__(
        self, summary: Mapping[str, Any], total_steps: int, console: Console | None = None, every: float = 1.0
    ) -> None:
        self.console = console or Terminal()
        self.summary, self.total, self.every = summary, total_steps, every
        self._printed = float("-inf")
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(16), TimeElapsedColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}", markup=False, table_column=Column(ratio=1)),
            console=self.console, refresh_per_second=REDRAWS_PER_SECOND, expand=True,
            disable=not self.console.is_terminal or self.console.is_dumb_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task("step", total=total_steps, numbers="")

    def __enter__(self) -> Display:
        self._line(", ".join(f"{key} {value}" for key, value in self.summary.items()))
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # the terminal may be gone
            self._bar.stop()  # draws the last state once more

    def warmup(self, done: int, total: int, solved: float) -> None:
        """Progress of the warm start, and the share of validation prompts that it solves."""
        self._show("warm-up", done, total, f"{percent(solved)} solved", always=done in (0, total))

    def step(self, metrics: Metrics, timing: Timing) -> None:
        """A training step is done."""
        parts = [f"reward {short(metrics.reward)}", f"clip {percent(metrics.clip_rate)}"]
        if metrics.clip_by_length:
            parts.append(f"by length {clip_row(metrics.clip_by_length)}")
        if metrics.lre is not None:
            parts.append(f"LRE {short(metrics.lre)}")
        if metrics.ess is not None:
            parts.append(f"ESS {short(metrics.ess)}")
        if timing.tokens_per_second is not None:
            parts.append(f"{timing.tokens_per_second:,.0f} tokens/s")
        self._show("step", metrics.step, self.total, " | ".join(parts), always=metrics.step in (1, self.total))

    def evaluation(self, row: Evaluated) -> None:
        """An evaluation is done."""
        extent = f" ({percent(row.interval[0])} to {percent(row.interval[1])})" if row.interval else ""
        unscored = f", {row.unscored:,} not scored" if row.unscored else ""
        self._line(f"step {row.step}: held-out accuracy {percent(row.accuracy)}{extent}{unscored}")

    def warn(self, text: str) -> None:
        self._line(f"warning: {text}")

    def note(self, text: str) -> None:
        self._line(text)

    def _show(self, what: str, done: int, total: int, numbers: str, *, always: bool) -> None:
        """Move the bar, or print a line if it is the first, the last or due."""
        if not self._bar.disable:
            text = f"{what} {done}/{total}"
            self._bar.update(self._task, description=text, completed=done, total=total, numbers=numbers)
        elif always or time.monotonic() - self._printed >= self.every:
            self._printed = time.monotonic()
            self._line(f"{what} {done}/{total} | {numbers}")

    def _line(self, text: str) -> None:
        """A line of text, above the bar if there is one."""
        with suppress(OSError):  # a terminal or a pipe that is gone does not end the run
            self.console.print(Text(visible(text).replace("\n", " ")), soft_wrap=True, highlight=False)
