"""The display on a terminal and off it."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console, RenderableType

from fspo.cli.display import Display, blocks, clip_row
from fspo.runs import ClipBin, Evaluated, Metrics, Observer, Timing

BINS = [
    ClipBin(low=4, high=12, count=30, clip_rate=0.05, interval=(0.0, 0.1)),
    ClipBin(low=13, high=40, count=30, clip_rate=0.1, interval=(0.0, 0.2)),
]
METRICS = Metrics(
    step=1, reward=0.31, clip_rate=0.08, clip_by_length=BINS, lre=0.12, lre_interval=(0.0, 0.2), ess=0.57, length=21.5,
    truncated=0.01,
)  # fmt: skip
TIMING = Timing(step=1, total=2.0, tokens_per_second=5234.5)
EVALUATION = Evaluated(step=0, split="eval", accuracy=0.25, interval=(0.2, 0.3), unscored=1203)


def of_step(step: int) -> tuple[Metrics, Timing]:
    return METRICS.model_copy(update={"step": step}), TIMING.model_copy(update={"step": step})


class AsciiFile(io.StringIO):
    encoding = "ascii"


def play(display: Display, steps: int = 5) -> None:
    observer: Observer = display  # what a run is given
    with display:
        observer.warmup(0, 10, 0.0)
        observer.warmup(10, 10, 0.26)
        observer.evaluation(EVALUATION)
        for step in range(1, steps + 1):
            observer.step(*of_step(step))
        observer.evaluation(Evaluated(step=steps, split="eval", accuracy=0.5, interval=(0.45, 0.55)))
        observer.warn("62 % of the answers are truncated [bold]\x1b[31m")
        observer.note("saved")


def test_a_file_gets_plain_short_lines() -> None:
    file = io.StringIO()
    play(Display({"model": "tiny", "task": "sort"}, 5, Console(file=file, width=40), every=0))
    text = file.getvalue()
    assert "\x1b" not in text
    assert "\r" not in text
    lines = text.splitlines()
    assert lines[0] == "model tiny, task sort"
    steps = [line for line in lines if line.startswith("step ") and "reward" in line]
    assert len(steps) == 5
    assert steps[0] == (
        "step 1/5 | reward 0.310 | clip 8.0 % | by length 4 ▅ 12 █ 40  up to 10.0 % | LRE 0.120 | ESS 0.570 | "
        "5,234 tokens/s | 8.0 s left"
    )
    assert "left" not in steps[-1]
    assert "step 0: held-out accuracy 25.0 % (20.0 % to 30.0 %), 1,203 not scored" in lines
    assert "warning: 62 % of the answers are truncated [bold]\\x1b[31m" in lines
    assert lines[-1] == "saved"


def test_plain_lines_come_at_most_once_in_the_given_time_but_the_ends_always() -> None:
    file = io.StringIO()
    play(Display({}, 200, Console(file=file), every=3600), steps=200)
    steps = [line for line in file.getvalue().splitlines() if "reward" in line]
    assert [line.split(" |")[0] for line in steps] == ["step 1/200", "step 200/200"]


@pytest.mark.parametrize("terminal", [False, True])
def test_an_ascii_log_gets_ascii(terminal: bool) -> None:
    file = AsciiFile()
    play(Display({"model": "größer"}, 5, Console(file=file, force_terminal=terminal), every=0))
    assert file.getvalue().isascii()
    assert "4 4 12 7 40" in file.getvalue()


def test_a_terminal_gets_the_panel() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=90, record=True, color_system=None)
    play(Display({"model": "tiny:small", "task": "sort", "objective": "fspo"}, 5, console))
    text = console.export_text()
    for part in ("tiny:small · sort · fspo", "step 5/5", "25.0 % → 50.0 % (45.0 % to 55.0 %), step 5", "5,234",
                 "4 ▅ 12 █ 40  up to 10.0 %", "0.120 (0 to 0.200)", "truncated [bold]\\x1b[31m", "saved"):  # fmt: skip
        assert part in text


@pytest.mark.parametrize(
    "metrics", [Metrics(step=1), Metrics(step=2, reward=float("nan"), lre=float("inf")), Metrics(step=3, lre=0.1)]
)
@pytest.mark.parametrize("terminal", [False, True])
def test_values_may_be_missing(metrics: Metrics, terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, record=True)
    with Display({}, 3, console) as display:
        display.step(metrics, Timing(step=metrics.step))
        display.evaluation(Evaluated(step=metrics.step, split="eval"))
    text = console.export_text()
    assert f"step {metrics.step}/3" in text
    assert not {"nan", "inf", "None"} & set(text.split())


def test_the_panel_goes_away_cleanly_when_training_fails() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True)
    display = Display({}, 3, console)

    def train() -> None:
        with display:
            display.step(METRICS, TIMING)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    assert display._screen is None
    assert file.getvalue().endswith("\x1b[?25h")  # the cursor is shown again


def test_a_step_draws_nothing_itself() -> None:
    """The panel's own thread draws it, so that training does not wait for the terminal."""
    drawn_by = []

    class Watched(Display):
        def _panel(self) -> RenderableType:
            drawn_by.append(threading.current_thread())
            return super()._panel()

    with Watched({}, 100, Console(file=io.StringIO(), force_terminal=True)) as display:
        drawn_by.clear()  # entering draws it once
        for step in range(1, 101):
            display.step(*of_step(step))
        assert threading.current_thread() not in drawn_by


def test_blocks() -> None:
    assert blocks([0, 0.5, 1]) == "▁▅█"
    assert blocks([0, 0]) == "▁▁"
    assert blocks([]) == ""
    assert clip_row([]) == ""
    assert clip_row([BINS[0].model_copy(update={"clip_rate": 0.0})]) == "4 ▁ 12  up to 0.0 %"
