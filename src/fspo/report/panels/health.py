"""Lengths of the answers, and whether the updates are sound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fspo.report import charts
from fspo.report.charts import Series
from fspo.report.load import Row, Run
from fspo.report.panels.learning import smooth_note
from fspo.report.panels.parts import Missing, Panel, Plot, colour_of
from fspo.report.panels.rows import between, known, overlay
from fspo.report.text import number, percent, short

LENGTH_BARS = 30


def lengths(runs: Sequence[Run]) -> list[Panel]:
    return [length_curve(runs), length_distribution(runs)]


def length_curve(runs: Sequence[Run]) -> Panel:
    title = "Answer length"
    if len(runs) == 1 and runs[0].records is not None:
        table = runs[0].records.lengths
        steps = table["step"].to_list()
        lines = [
            Series("", steps, [None] * len(steps), table["q05"].to_list(), table["q95"].to_list(), colour=1),
            Series("", steps, [None] * len(steps), table["q25"].to_list(), table["q75"].to_list(), colour=1),
            Series("median", steps, table["q50"].to_list(), colour=1),
        ]
        said = f"Median length from {short(table['q50'][0])} to {short(table['q50'][-1])} tokens."
        svg = charts.line(title, said, lines, y_label="tokens", legend=False)
        return Plot(title, svg, "Line: median. Dark band: middle half. Light band: 5 to 95 %.")
    lines = overlay(runs, "length", "mean length")
    if not lines:
        return Missing(title, "No step has a length.")
    svg = charts.line(title, "Mean length a step.", lines, y_label="tokens")
    return Plot(title, svg, f"Mean of each step. {smooth_note(lines)}".strip())


def length_distribution(runs: Sequence[Run]) -> Panel:
    title = "Length distribution, last steps"
    found = [(k, run, run.records) for k, run in enumerate(runs) if run.records is not None]
    if not found:
        return Missing(title, "There are no per-answer records yet.")
    columns = [records.last["length"].to_numpy() for _, _, records in found]
    low, high = min(c.min() for c in columns), max(c.max() for c in columns)
    # Whole tokens a bar, so that no bar holds more lengths than its neighbour.
    width = max(1, int(np.ceil((high - low + 1) / LENGTH_BARS)))
    edges = np.arange(low - 0.5, high + 0.5 + width, width)
    counts = [np.histogram(c, edges)[0] for c in columns]
    label = "answer length (tokens)"
    if len(runs) == 1:
        steps = between(found[0][2].last_steps)
        middle = float(np.median(columns[0]))
        svg = charts.histogram(
            title,
            f"Answers of {steps}: from {low:g} to {high:g} tokens, median {middle:g}.",
            [float(e) for e in edges],
            [float(c) for c in counts[0]],
            None,
            [(f"median, {middle:g}", middle)],
            label,
            "rows",
        )
        return Plot(title, svg, f"Rows of {steps}: an answer counts once for each update it took part in.")
    centres = [float(e) for e in (edges[:-1] + edges[1:]) / 2]
    lines = [
        Series(run.name, centres, [float(v) for v in count / count.sum()], colour=colour_of(k))
        for (k, run, _), count in zip(found, counts, strict=True)
    ]
    svg = charts.line(title, "Share of answers by length.", lines, label, "share of answers", percent_axis=True)
    return Plot(title, svg, f"Share of each run's answers in bins of {width} token{'s' * (width > 1)}.")


HEALTH = (  # metric, title, unit, colour, whether it is a share
    ("grad_norm", "Gradient norm", "norm", 1, False),
    ("entropy", "Entropy", "nats a token", 3, False),
    ("kl", "KL", "nats a token", 4, False),
    ("ess", "Effective sample size", "share of the answers", 6, True),
    ("truncated", "Truncated answers", "share of the answers", 2, True),
    ("without_variance", "Groups without variance", "share of the groups", 5, True),
)


def health(runs: Sequence[Run]) -> list[Panel]:
    panels: list[Panel] = []
    for key, title, unit, colour, share in HEALTH:
        lines = overlay([replace(run, metrics=[_with_share(row) for row in run.metrics]) for run in runs], key, title,
                        colour=colour)  # fmt: skip
        if not lines:
            panels.append(Missing(title, "Not measured."))
            continue
        values, form = known(lines), percent if share else short
        said = f"Between {form(min(values))} and {form(max(values))}."
        if len(runs) == 1:
            said = f"From {form(values[0])} to {form(values[-1])}, b" + said[1:]
        svg = charts.line(
            title, said, lines, y_label=unit, height=230, width=340, top=1.0 if share else None, percent_axis=share
        )
        panels.append(Plot(title, svg, said))
    return panels


def _with_share(row: Row) -> Row:
    """The share of groups whose rewards are all equal, where the trainer counted them."""
    flat, groups = number(row.get("groups_without_variance")), number(row.get("groups"))
    return row if flat is None or not groups else {**row, "without_variance": flat / groups}
