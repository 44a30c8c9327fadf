"""Did it learn? Held-out accuracy and training reward."""

from __future__ import annotations

from collections.abc import Sequence

from fspo.report import charts
from fspo.report.charts import Series
from fspo.report.load import Row, Run
from fspo.report.panels.parts import COLOURS, Missing, Panel, Plot, colour_of
from fspo.report.panels.rows import (
    held_out,
    interval_of,
    known,
    limits,
    listed,
    main_split,
    overlay,
    range_name,
    series_of,
    with_interval,
)
from fspo.report.text import number, percent, short


def learning(runs: Sequence[Run]) -> list[Panel]:
    return [
        held_out_curve(runs),
        reward_curve(runs),
        accuracy_by(runs, "length", "answer length (tokens)"),
        accuracy_by(runs, "difficulty", "difficulty"),
    ]


def held_out_curve(runs: Sequence[Run]) -> Panel:
    title = "Held-out accuracy"
    rows: list[tuple[str, list[Row]]] = [(run.name, main_split(run)) for run in runs]
    if len(runs) == 1:
        rows = list(held_out(runs[0]).items())
    lines = []
    for k, (name, evaluations) in enumerate(rows):
        if evaluations:
            pairs = [interval_of(row) or (None, None) for row in evaluations]
            lines.append(
                Series(name, [r["step"] for r in evaluations], [number(r["accuracy"]) for r in evaluations],
                       [p[0] for p in pairs], [p[1] for p in pairs], colour=colour_of(k), dots=True, whiskers=True,
                       dashed=k >= COLOURS)
            )  # fmt: skip
    if not lines:
        return Missing(title, "No evaluation has been written yet.")
    said = []
    for run in runs:
        if found := main_split(run):
            first, last = found[0], found[-1]
            said.append(
                ("" if len(runs) == 1 else f"{run.name}: ")
                + f"from {with_interval(first['accuracy'], interval_of(first))} at step {first['step']} to "
                f"{with_interval(last['accuracy'], interval_of(last))} at step {last['step']}"
            )
    svg = charts.line(title, "; ".join(said) + ".", lines, y_label="accuracy", top=1.0, percent_axis=True)
    return Plot(title, svg, _size(runs) + "Bars are the evaluation's own intervals.")


def _size(runs: Sequence[Run]) -> str:
    """How many prompts and samples, where all runs agree."""
    sizes = {(number(r[-1].get("prompts")), number(r[-1].get("samples"))) for run in runs if (r := main_split(run))}
    prompts, samples = sizes.pop()
    if prompts is None or sizes:
        return ""
    return f"{prompts:,.0f} prompts" + (f", {samples:g} sample{'s' * (samples != 1)} each" if samples else "") + ". "


def reward_curve(runs: Sequence[Run]) -> Panel:
    title = "Training reward"
    lines = overlay(runs, "reward", "mean reward")
    if len(runs) == 1:
        right = series_of(runs[0].metrics, "accuracy_train", label="share with reward 1", smooth=True, colour=3)
        # With rewards of 0 and 1 the two are the same line.
        if right is not None and not (lines and list(lines[0].y) == list(right.y)):
            lines.append(right)
    if not lines:
        return Missing(title, "No step has a reward.")
    kept = known(lines)
    svg = charts.line(
        title,
        f"Between {short(min(kept))} and {short(max(kept))} over {max(len(line.x) for line in lines)} steps.",
        lines,
        y_label="mean reward" if len(lines) == 1 or len(runs) > 1 else "",
        top=1.0,
    )
    return Plot(title, svg, smooth_note(lines))


def smooth_note(lines: Sequence[Series]) -> str:
    return "Faint: each step. Strong: running mean." if max(len(line.x) for line in lines) >= 20 else ""


def accuracy_by(runs: Sequence[Run], what: str, label: str) -> Panel:
    """Accuracy over the middle of each bin: bins differ from evaluation to evaluation."""
    title, key = f"Held-out accuracy by {what}", f"by_{what}"
    chosen: list[tuple[str, Row]] = []
    for run in runs:
        rows = [row for row in main_split(run) if listed(row, key)]
        if len(runs) > 1:
            chosen += [(run.name, row) for row in rows[-1:]]
        else:
            chosen += [(f"step {row['step']}", row) for row in (rows[:1] if len(rows) < 2 else [rows[0], rows[-1]])]
    if not chosen:
        return Missing(title, f"No evaluation by {what} has been written yet.")
    lines, said = [], []
    for k, (name, row) in enumerate(chosen):
        bins = sorted((b for b in listed(row, key) if number(b.get("accuracy")) is not None), key=limits)
        pairs = [interval_of(b) or (None, None) for b in bins]
        colour = colour_of(k) if len(runs) > 1 else 2 if k == 0 and len(chosen) == 2 else 1
        lines.append(
            Series(name, [sum(limits(b)) / 2 for b in bins], [number(b["accuracy"]) for b in bins],
                   [p[0] for p in pairs], [p[1] for p in pairs], colour=colour, dots=True, whiskers=True)
        )  # fmt: skip
        said.append(f"{name}: " + ", ".join(f"{range_name(*limits(b))} {percent(b['accuracy'])}" for b in bins))
    middles = [float(x) for line in lines for x in line.x]
    svg = charts.line(
        title, "; ".join(said) + ".", lines, label, "accuracy", top=1.0, percent_axis=True,
        whole_x=max(middles) - min(middles) > 5,
    )  # fmt: skip
    which = "Last evaluation of each run" if len(runs) > 1 else "First and last evaluation"
    return Plot(title, svg, f"{which}, with intervals; a point stands in the middle of its bin.")
