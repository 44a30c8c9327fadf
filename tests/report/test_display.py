"""The display on a terminal and off it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fspo.cli.display import Display
from fspo.runs import ClipBin, Evaluated, Metrics, Observer, Timing

BINS = [
    ClipBin(low=4, high=12, count=30, clip_rate=0.05, interval=(0.0, 0.1)),
    ClipBin(low=13, high=40, count=30, clip_rate=0.1, interval=(0.0, 0.2)),
]
METRICS = Metrics(step=1, reward=0.31, clip_rate=0.08, clip_by_length=BINS, lre=0.12, ess=0.57)
TIMING = Timing(step=1, total=2.0, tokens_per_second=5234.5)
EVALUATION = Evaluated(step=0, split="eval", accuracy=0.25, interval=(0.2, 0.3), unscored=1203)
NUMBERS = "reward 0.310 | clip 8.0 % | by length 4 ▅ 12 █ 40  up to 10.0 % | LRE 0.120 | ESS 0.570 | 5,234 tokens/s"


def play(display: Display, steps: int = 5) -> None:
    observer: Observer = display  # what a run is given
    with display:
        observer.warmup(0, 10, 0.0)
        observer.warmup(10, 10, 0.26)
        observer.evaluation(EVALUATION)
        for step in range(1, steps + 1):
            observer.step(METRICS.model_copy(update={"step": step}), TIMING)
        observer.warn("62 % of the answers are truncated [bold]\x1b[31m")
        observer.note("saved")


def test_a_file_gets_plain_lines() -> None:
    file = io.StringIO()
    play(Display({"model": "tiny", "task": "sort"}, 5, Console(file=file, width=40), every=0))
    assert file.getvalue().splitlines() == [
        "model tiny, task sort",
        "warm-up 0/10 | 0.0 % solved",
        "warm-up 10/10 | 26.0 % solved",
        "step 0: held-out accuracy 25.0 % (20.0 % to 30.0 %), 1,203 not scored",
        *(f"step {step}/5 | {NUMBERS}" for step in range(1, 6)),
        "warning: 62 % of the answers are truncated [bold]\\x1b[31m",
        "saved",
    ]


def test_plain_lines_come_at_most_once_in_the_given_time_but_the_ends_always() -> None:
    file = io.StringIO()
    play(Display({}, 200, Console(file=file), every=3600), steps=200)
    steps = [line for line in file.getvalue().splitlines() if "reward" in line]
    assert [line.split(" |")[0] for line in steps] == ["step 1/200", "step 200/200"]


def test_a_terminal_gets_a_bar_with_the_numbers() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=200, record=True, color_system=None)
    play(Display({"model": "tiny:small", "task": "sort"}, 5, console))
    text = console.export_text()
    for part in ("model tiny:small, task sort", "step 5/5", NUMBERS, "held-out accuracy 25.0 %", "saved",
                 "truncated [bold]\\x1b[31m"):  # fmt: skip
        assert part in text


@pytest.mark.parametrize("terminal", [False, True])
def test_values_may_be_missing(terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, record=True)
    with Display({}, 3, console) as display:
        for metrics in (Metrics(step=1), Metrics(step=3, reward=float("nan"), lre=float("inf"))):
            display.step(metrics, Timing(step=metrics.step))
            display.evaluation(Evaluated(step=metrics.step, split="eval"))
    text = console.export_text()
    assert "step 3/3" in text
    assert not {"nan", "inf", "None"} & set(text.split())


def test_the_bar_goes_away_cleanly_when_training_fails() -> None:
    file = io.StringIO()

    def train() -> None:
        with Display({}, 3, Console(file=file, force_terminal=True)) as display:
            display.step(METRICS, TIMING)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    assert "\x1b[?25h" in file.getvalue()  # the cursor is shown again
