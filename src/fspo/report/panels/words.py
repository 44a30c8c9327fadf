"""Warnings, what the model answered, and the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from fspo.report.load import Row, Run
from fspo.report.text import escape, number, slug

MOST_WARNINGS = 40
SAMPLES_BYTES = 1_200_000  # of the page, for all answers together


def warnings(runs: Sequence[Run]) -> str:
    found: dict[tuple[str, str], list[int]] = {}
    for run in runs:
        for row in run.metrics:
            texts = row.get("warnings")
            for text in texts if isinstance(texts, list) else []:
                found.setdefault((run.name, str(text)), []).append(row["step"])
    if not found:
        return '<p class="none">None.</p>'
    several = len(runs) > 1
    body = "".join(
        "<tr>"
        + (f"<td>{escape(name)}</td>" if several else "")
        + f'<td>{escape(text)}</td><td class="n">{len(steps):,}</td>'
        f'<td class="n">{steps[0] if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"}</td></tr>'
        for (name, text), steps in list(found.items())[:MOST_WARNINGS]
    )
    more = len(found) - MOST_WARNINGS
    head = ('<th scope="col">Run</th>' if several else "") + (
        '<th scope="col">Warning</th><th scope="col" class="n">Times</th><th scope="col" class="n">Steps</th>'
    )
    return f'<div class="card"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>' + (
        f'<p class="note">{more:,} more are in metrics.jsonl.</p>' if more > 0 else ""
    )


def samples(runs: Sequence[Run]) -> str:
    """Answers by step. The search is the script's; without it all are there to be read."""
    parts = [_run_samples(run, len(runs) > 1, SAMPLES_BYTES // len(runs)) for run in runs if run.samples]
    if not parts:
        return '<p class="none">No answer has been written yet.</p>'
    return (
        '<p class="control search" hidden><label for="search">Search</label>'
        '<input type="search" id="search" placeholder="words in a prompt or an answer" autocomplete="off" '
        'spellcheck="false"><output id="found" for="search"></output></p>' + "".join(parts)
    )


def _run_samples(run: Run, several: bool, budget: int) -> str:
    """The steps that fit the budget, evenly spread, first and last included."""
    steps: dict[int, list[str]] = {}
    for row in run.samples:
        steps.setdefault(row["step"], []).append(_answer(row))
    sizes = {step: sum(len(text.encode()) for text in texts) for step, texts in steps.items()}
    shown = list(steps)
    while len(shown) > 2 and sum(sizes[s] for s in shown) > budget:
        shown = [*shown[:-1:2], shown[-1]]
    title = f"{run.name}, step" if several else "Step"
    ends = {shown[0], shown[-1]}
    return "".join(
        f'<details class="step" id="answers-{slug(run.name)}-{step}"{" open" * (step in ends)}>'
        f"<summary>{escape(title)} {step}</summary>"
        f"<div>{''.join(steps[step])}</div></details>"
        for step in shown
    )


def _answer(row: Row) -> str:
    reward, length = number(row.get("reward")), number(row.get("length"))
    tag = "tag" if reward is None else "tag good" if reward > 0 else "tag bad"
    facts = [f'<span class="{tag}">reward {"not scored" if reward is None else f"{reward:g}"}</span>']
    if length is not None:
        facts.append(f"{length:g} tokens")
    if row.get("truncated"):
        facts.append("truncated")
    if row.get("task"):
        facts.append(escape(row["task"]))
    return (
        f'<div class="answer"><p>{" · ".join(facts)}</p><div class="pair"><div><p>Prompt</p>'
        f"<pre>{escape(row.get('prompt', ''))}</pre></div>"
        f"<div><p>Answer</p><pre>{escape(row.get('completion', ''))}</pre></div></div></div>"
    )


def configuration(runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        return _config(runs[0], "config.yaml", True)
    return _differences(runs) + "".join(_config(run, f"{run.name}: config.yaml", False) for run in runs)


def _config(run: Run, title: str, opened: bool) -> str:
    if not run.config:
        return f'<p class="none">{escape(title)}: there is none that can be read.</p>'
    text = yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True, width=100)
    return (
        f'<details id="config-{slug(run.name)}"{" open" * opened}><summary>{escape(title)}</summary>'
        f'<div><pre tabindex="0">{escape(text)}</pre></div></details>'
    )


def _differences(runs: Sequence[Run]) -> str:
    """The settings in which the runs differ."""
    tables = [_flat(run.config) for run in runs]
    keys = [k for k in dict.fromkeys(key for t in tables for key in t) if len({str(t.get(k, "–")) for t in tables}) > 1]
    if not keys:
        return '<p class="none">The configurations are the same.</p>'
    head = "".join(f'<th scope="col">{escape(run.name)}</th>' for run in runs)
    body = "".join(
        f'<tr><th scope="row">{escape(key)}</th>'
        + "".join(f"<td>{escape(t.get(key, '–'))}</td>" for t in tables)
        + "</tr>"
        for key in keys
    )
    return (
        '<div class="card scroll" tabindex="0" role="region" aria-label="Settings that differ"><table><thead><tr>'
        f'<th scope="col">Setting that differs</th>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _flat(value: Any, prefix: str = "") -> dict[str, str]:
    if not isinstance(value, dict):
        return {prefix: str(value)}
    return {
        k: v for key, item in value.items() for k, v in _flat(item, f"{prefix}.{key}" if prefix else str(key)).items()
    }
