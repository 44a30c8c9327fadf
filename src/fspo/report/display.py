"""The terminal while a run goes: a live panel on a terminal, plain lines anywhere else.

Callers hand over what they wrote to metrics.jsonl, timings.jsonl and evaluations.jsonl; the panel is redrawn by its
own thread at most twice a second, so a call costs a few assignments.
"""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fspo.report.text import duration, number, percent, short, visible

BLOCKS, ASCII_BLOCKS = "▁▂▃▄▅▆▇█", "01234567"
PLAINER = str.maketrans({"–": "-", "−": "-", "→": "->", "·": "|"})
REDRAWS_A_SECOND = 2
HISTORY = 40  # steps of reward in the small curve
MESSAGES = 5  # warnings and notes that stay in the panel


def blocks(values: list[float], most: float | None = None, ascii_only: bool = False) -> str:
    """One block a value, from zero to the largest."""
    levels = ASCII_BLOCKS if ascii_only else BLOCKS
    top = max(values, default=0.0) if most is None else most
    if top <= 0:
        return levels[0] * len(values)
    return "".join(levels[max(0, min(7, round(7 * value / top)))] for value in values)


def clip_row(bins: Any, ascii_only: bool = False) -> str:
    """`4 ▇ 12 █ 30 ▇ 41  up to 12.0 %`: a block for each bin of length, between its edges. Level is fair."""
    rows = [b for b in bins if isinstance(b, dict)] if isinstance(bins, list) else []
    rows = [b for b in rows if all(number(b.get(key)) is not None for key in ("low", "high", "clip_rate"))]
    if not rows:
        return ""
    rates = [float(b["clip_rate"]) for b in rows]
    heights = blocks(rates, ascii_only=ascii_only)
    parts = [f"{rows[0]['low']:g}"] + [f"{h} {b['high']:g}" for h, b in zip(heights, rows, strict=True)]
    return " ".join(parts) + f"  up to {percent(max(rates))}"


class Display:
    """Shows a run's progress; a context manager.

    `config_summary` is a few words by name (model, task, objective) for the panel's head. `every` is the least time in
    seconds between two plain lines; the first and the last step, evaluations and warnings are always printed.
    """

    def __init__(
        self, config_summary: dict[str, Any], total_steps: int, console: Console | None = None, every: float = 1.0
    ) -> None:
        self.console = console or Console()
        self.live = self.console.is_terminal and not self.console.is_dumb_terminal
        self.summary = {str(key): visible(value) for key, value in config_summary.items()}
        self.total = total_steps
        self.every = every
        self._ascii = self.console.options.ascii_only
        self._screen: Live | None = None
        self._warming: tuple[int, int, float | None] | None = None
        self._metrics: dict[str, Any] = {}
        self._timing: dict[str, Any] = {}
        self._step = 0
        self._rewards: deque[float] = deque(maxlen=HISTORY)
        self._ends: deque[float] = deque(maxlen=30)  # times at which the last steps ended
        self._evaluations: list[dict[str, Any]] = []  # the first and the last
        self._messages: deque[tuple[str, str]] = deque(maxlen=MESSAGES)
        self._printed = float("-inf")
        self._begun = time.monotonic()

    def __enter__(self) -> Display:
        self._begun = time.monotonic()
        if self.live:
            self._screen = Live(
                get_renderable=self._panel, console=self.console, refresh_per_second=REDRAWS_A_SECOND, transient=False
            )
            self._screen.start()
        else:
            self._line(", ".join(f"{key} {value}" for key, value in self.summary.items()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._screen is not None:
            self._screen.stop()  # draws the last state once more
            self._screen = None

    # --- what happens in a run ---

    def warmup(self, done: int, total: int, solved: float | None = None) -> None:
        """Progress of the warm start, and the share of problems that it solves."""
        self._warming = (done, total, number(solved))
        if self._plain_turn(done in (0, total)):
            share = "" if solved is None else f", {percent(number(solved))} solved"
            self._line(f"warm-up {done}/{total}{share}")

    def step(self, metrics: dict[str, Any], timing: dict[str, Any]) -> None:
        """A training step is done."""
        first = self._step == 0
        self._warming = None
        self._metrics, self._timing = metrics, timing
        self._step = int(metrics.get("step") or self._step + 1)
        self._ends.append(time.monotonic())
        reward = number(metrics.get("reward"))
        if reward is not None:
            self._rewards.append(reward)
        if self._plain_turn(first or self._step >= self.total):
            self._line(self._plain())

    def evaluation(self, row: dict[str, Any]) -> None:
        """An evaluation is done."""
        self._evaluations = [*self._evaluations[:1], row]
        if not self.live:
            self._line(f"step {row.get('step', self._step)}: held-out accuracy {_accuracy(row)}")

    def warn(self, text: str) -> None:
        self._message("warning", text)

    def note(self, text: str) -> None:
        self._message("note", text)

    # --- how it is shown ---

    @property
    def seconds_left(self) -> float | None:
        """From the pace of the last steps; None until two have ended."""
        if len(self._ends) < 2:
            each = number(self._timing.get("total"))
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
        self.console.print(self._text(text), soft_wrap=True, highlight=False)

    def _text(self, text: str, style: str = "") -> Text:
        """Text as it is, never as markup; an ASCII terminal or log gets ASCII."""
        if self._ascii:
            text = text.translate(PLAINER).encode("ascii", "backslashreplace").decode()
        return Text(text, style=style)

    def _plain(self) -> str:
        m = self._metrics
        parts = [f"step {self._step}/{self.total}", f"reward {short(number(m.get('reward')))}"]
        parts.append(f"clip {percent(number(m.get('clip_rate')))}")
        row = clip_row(m.get("clip_by_length"), self._ascii)
        if row:
            parts.append(f"by length {row}")
        if number(m.get("lre")) is not None:
            parts.append(f"LRE {short(number(m['lre']))}")
        if number(m.get("ess")) is not None:
            parts.append(f"ESS {short(number(m['ess']))}")
        speed = number(self._timing.get("tokens_per_second"))
        if speed is not None:
            parts.append(f"{speed:,.0f} tokens/s")
        if self.seconds_left is not None and self._step < self.total:
            parts.append(f"{duration(self.seconds_left)} left")
        return " | ".join(parts)

    def _panel(self) -> RenderableType:
        m, table = self._metrics, Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        reward = short(number(m.get("reward")))
        if len(self._rewards) > 1:
            reward = f"{reward}  {blocks(list(self._rewards), ascii_only=self._ascii)}"
        rows = [("reward", reward if m else "")]
        if self._evaluations:
            first, last = self._evaluations[0], self._evaluations[-1]
            start = f"{percent(number(first.get('accuracy')))} → " if last is not first else ""
            rows.append(("held-out", f"{start}{_accuracy(last)}, step {last.get('step')}"))
        if m:
            clip = clip_row(m.get("clip_by_length"), self._ascii)
            rows += [
                ("clip rate", percent(number(m.get("clip_rate")))),
                ("  by length", clip or "nothing clipped yet"),
                ("LRE", _with_interval(m)),
                ("ESS", short(number(m.get("ess")))),
                ("length", f"{short(number(m.get('length')))}, truncated {percent(number(m.get('truncated')))}"),
            ]
            speed = number(self._timing.get("tokens_per_second"))
            rows.append(("tokens/s", "–" if speed is None else f"{speed:,.0f}"))
        for name, value in rows:
            if value:
                table.add_row(name, self._text(value))
        for kind, text in self._messages:
            table.add_row(kind, self._text(text, "yellow" if kind == "warning" else ""))
        head = " · ".join(self.summary.values())
        return Panel(Group(self._progress(), table), title=self._text(head), title_align="left", expand=True)

    def _progress(self) -> RenderableType:
        line = Table.grid(padding=(0, 2), expand=True)
        line.add_column(no_wrap=True)
        line.add_column(ratio=1)
        line.add_column(no_wrap=True, justify="right")
        spent = duration(time.monotonic() - self._begun)
        if self._warming is not None:
            done, total, solved = self._warming
            share = "" if solved is None else f"{percent(solved)} solved, "
            line.add_row(Text(f"warm-up {done}/{total}"), ProgressBar(total or 1, done), Text(f"{share}{spent}"))
        else:
            left = self.seconds_left
            words = f"{spent}, {duration(left)} left" if left is not None and self._step < self.total else spent
            line.add_row(Text(f"step {self._step}/{self.total}"), ProgressBar(self.total or 1, self._step), Text(words))
        return line


def _accuracy(row: dict[str, Any]) -> str:
    pair = row.get("interval")
    text = percent(number(row.get("accuracy")))
    if isinstance(pair, list | tuple) and len(pair) == 2:
        text += f" ({percent(number(pair[0]))} to {percent(number(pair[1]))})"
    return text


def _with_interval(metrics: dict[str, Any]) -> str:
    pair, lre = metrics.get("lre_interval"), number(metrics.get("lre"))
    if lre is None or not isinstance(pair, list | tuple) or len(pair) != 2:
        return short(lre)
    return f"{short(lre)} ({short(number(pair[0]))} to {short(number(pair[1]))})"
