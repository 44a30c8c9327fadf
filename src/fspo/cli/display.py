"""Progress of a run: a live panel on a terminal, plain lines anywhere else.

The panel is redrawn by its own thread at most twice per second, so that a call costs a few assignments.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fspo.cli import Terminal
from fspo.runs import ClipBin, Evaluated, Metrics, Observer, Timing
from fspo.text import duration, percent, short, visible

__all__ = ["Display"]

BLOCKS, ASCII_BLOCKS = "▁▂▃▄▅▆▇█", "01234567"
PLAINER = str.maketrans({"–": "-", "−": "-", "→": "->", "·": "|"})
REDRAWS_PER_SECOND = 2
HISTORY = 40  # steps of reward in the small curve
MESSAGES = 5  # warnings and notes that stay in the panel


def blocks(values: list[float], ascii_only: bool = False) -> str:
    """One block per value, from zero to the largest."""
    levels = ASCII_BLOCKS if ascii_only else BLOCKS
    top = max(values, default=0.0)
    if top <= 0:
        return levels[0] * len(values)
    return "".join(levels[max(0, min(7, round(7 * value / top)))] for value in values)


def clip_row(bins: Sequence[ClipBin], ascii_only: bool = False) -> str:
    """`4 ▇ 12 █ 30 ▇ 41  up to 12.0 %`: a block for each bin of length, between its edges. Equal blocks are fair."""
    if not bins:
        return ""
    rates = [b.clip_rate for b in bins]
    heights = blocks(rates, ascii_only=ascii_only)
    parts = [f"{bins[0].low:g}"] + [f"{h} {b.high:g}" for h, b in zip(heights, bins, strict=True)]
    return " ".join(parts) + f"  up to {percent(max(rates))}"


class Display(Observer):
    """Shows a run's progress: a context manager, and the observer of the run.

    `config_summary` names the model, task, objective and so on for the panel's title. `every` is the least time in
    seconds between two plain lines; the first and the last step, evaluations and warnings are always printed.
    """

    def __init__(
        self, config_summary: Mapping[str, Any], total_steps: int, console: Console | None = None, every: float = 1.0
    ) -> None:
        self.console = console or Terminal()
        self.live = self.console.is_terminal and not self.console.is_dumb_terminal
        self.summary = {key: visible(value) for key, value in config_summary.items()}
        self.total = total_steps
        self.every = every
        self._ascii = self.console.options.ascii_only
        self._screen: Live | None = None
        self._warming: tuple[int, int, float] | None = None
        self._metrics: Metrics | None = None
        self._timing: Timing | None = None
        self._step = 0
        self._rewards: deque[float] = deque(maxlen=HISTORY)
        self._ends: deque[float] = deque(maxlen=30)  # times at which the last steps ended
        self._evaluations: list[Evaluated] = []  # the first and the last
        self._messages: deque[tuple[str, str]] = deque(maxlen=MESSAGES)
        self._printed = float("-inf")
        self._begun = time.monotonic()

    def __enter__(self) -> Display:
        self._begun = time.monotonic()
        if self.live:
            self._screen = Live(
                get_renderable=self._panel, console=self.console, refresh_per_second=REDRAWS_PER_SECOND, transient=False
            )
            self._screen.start()
        else:
            self._line(", ".join(f"{key} {value}" for key, value in self.summary.items()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._screen is not None:
            with suppress(OSError):  # the terminal may be gone
                self._screen.stop()  # draws the last state once more
            self._screen = None

    # --- the observer ---

    def warmup(self, done: int, total: int, solved: float) -> None:
        """Progress of the warm start, and the share of validation prompts that it solves."""
        self._warming = (done, total, solved)
        if self._plain_turn(done in (0, total)):
            self._line(f"warm-up {done}/{total}, {percent(solved)} solved")

    def step(self, metrics: Metrics, timing: Timing) -> None:
        """A training step is done."""
        first = self._metrics is None
        self._warming = None
        self._metrics, self._timing, self._step = metrics, timing, metrics.step
        self._ends.append(time.monotonic())
        if metrics.reward is not None:
            self._rewards.append(metrics.reward)
        if self._plain_turn(first or self._step >= self.total):
            self._line(self._plain(metrics, timing))

    def evaluation(self, row: Evaluated) -> None:
        """An evaluation is done."""
        self._evaluations = [*self._evaluations[:1], row]
        if not self.live:
            self._line(f"step {row.step}: held-out accuracy {_accuracy(row)}")

    def warn(self, text: str) -> None:
        self._message("warning", text)

    def note(self, text: str) -> None:
        self._message("note", text)

    # --- the display ---

    @property
    def seconds_left(self) -> float | None:
        """From the pace of the last steps, or from the one step that has ended; None where that is not known."""
        if len(self._ends) < 2:
            each = None if self._timing is None else self._timing.total
            return None if each is None else each * max(0, self.total - self._step)
        pace = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
        return max(0.0, pace * (self.total - self._step) - (time.monotonic() - self._ends[-1]))

    def _message(self, kind: str, text: str) -> None:
        text = visible(text).replace("\n", " ")
        if self.live:
            if (kind, text) not in self._messages:
                self._messages.append((kind, text))
        else:
            self._line(f"{kind}: {text}" if kind == "warning" else text)

    def _plain_turn(self, always: bool) -> bool:
        if self.live:
            return False
        now = time.monotonic()
        if always or now - self._printed >= self.every:
            self._printed = now
            return True
        return False

    def _line(self, text: str) -> None:
        with suppress(OSError):  # a terminal or a pipe that is gone does not end the run
            self.console.print(self._text(text), soft_wrap=True, highlight=False)

    def _text(self, text: str, style: str = "") -> Text:
        """Text as it is, never as markup; an ASCII terminal or log gets ASCII."""
        if self._ascii:
            text = text.translate(PLAINER).encode("ascii", "backslashreplace").decode()
        return Text(text, style=style)

    def _plain(self, m: Metrics, timing: Timing) -> str:
        parts = [f"step {self._step}/{self.total}", f"reward {short(m.reward)}", f"clip {percent(m.clip_rate)}"]
        if m.clip_by_length:
            parts.append(f"by length {clip_row(m.clip_by_length, self._ascii)}")
        if m.lre is not None:
            parts.append(f"LRE {short(m.lre)}")
        if m.ess is not None:
            parts.append(f"ESS {short(m.ess)}")
        if timing.tokens_per_second is not None:
            parts.append(f"{timing.tokens_per_second:,.0f} tokens/s")
        if self.seconds_left is not None and self._step < self.total:
            parts.append(f"{duration(self.seconds_left)} left")
        return " | ".join(parts)

    def _panel(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in self._rows():
            table.add_row(name, self._text(value))
        for kind, text in self._messages:
            table.add_row(kind, self._text(text, "yellow" if kind == "warning" else ""))
        head = " · ".join(self.summary.values())
        return Panel(Group(self._progress(), table), title=self._text(head), title_align="left", expand=True)

    def _rows(self) -> list[tuple[str, str]]:
        m, timing = self._metrics, self._timing  # the panel's thread reads them while a step replaces them
        rows = []
        if m is not None:
            curve = f"  {blocks(list(self._rewards), ascii_only=self._ascii)}" if len(self._rewards) > 1 else ""
            rows.append(("reward", short(m.reward) + curve))
        if self._evaluations:
            first, last = self._evaluations[0], self._evaluations[-1]
            start = f"{percent(first.accuracy)} → " if last is not first else ""
            rows.append(("held-out", f"{start}{_accuracy(last)}, step {last.step}"))
        if m is not None and timing is not None:
            speed = timing.tokens_per_second
            rows += [
                ("clip rate", percent(m.clip_rate)),
                ("  by length", clip_row(m.clip_by_length, self._ascii) or "nothing clipped yet"),
                ("LRE", _with_interval(m)),
                ("ESS", short(m.ess)),
                ("length", f"{short(m.length)}, truncated {percent(m.truncated)}"),
                ("tokens/s", "–" if speed is None else f"{speed:,.0f}"),
            ]
        return rows

    def _progress(self) -> RenderableType:
        line = Table.grid(padding=(0, 2), expand=True)
        line.add_column(no_wrap=True)
        line.add_column(ratio=1)
        line.add_column(no_wrap=True, justify="right")
        spent = duration(time.monotonic() - self._begun)
        if self._warming is not None:
            done, total, solved = self._warming
            words = f"{percent(solved)} solved, {spent}"
            line.add_row(Text(f"warm-up {done}/{total}"), ProgressBar(total or 1, done), Text(words))
        else:
            left = self.seconds_left
            words = f"{spent}, {duration(left)} left" if left is not None and self._step < self.total else spent
            line.add_row(Text(f"step {self._step}/{self.total}"), ProgressBar(self.total or 1, self._step), Text(words))
        return line


def _accuracy(row: Evaluated) -> str:
    if row.interval is None:
        return percent(row.accuracy)
    unscored = f", {row.unscored:,} not scored" if row.unscored else ""
    return f"{percent(row.accuracy)} ({percent(row.interval[0])} to {percent(row.interval[1])}){unscored}"


def _with_interval(m: Metrics) -> str:
    if m.lre is None or m.lre_interval is None:
        return short(m.lre)
    return f"{short(m.lre)} ({short(m.lre_interval[0])} to {short(m.lre_interval[1])})"
