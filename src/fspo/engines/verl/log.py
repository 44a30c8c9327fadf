"""verl's own log as part of a run folder.

A policy loss sees no rewards: `UpdateTracker` records lengths, log-ratios and clipping, and the rest is in the log of
verl's `file` logger (`trainer.logger=[console,file]`, path in VERL_FILE_LOGGER_PATH). `fspo report` shows both.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fspo.files import BadLine, json_lines
from fspo.runs import Evaluated, Metrics, RunWriter, Timing, read_lines

METRICS = {
    "reward": "critic/score/mean", "length": "response_length/mean", "truncated": "response_length/clip_ratio",
    "loss": "actor/pg_loss", "grad_norm": "actor/grad_norm", "lr": "actor/lr",
}  # fmt: skip
TIMES = {"rollout": "timing_s/gen", "update": "timing_s/update_actor", "total": "timing_s/step"}
VALIDATION = re.compile(r"val-(?:core|aux)/(.+)/(acc|reward)/mean@(\d+)")


def collect(log: str | Path, folder: str | Path) -> int:
    """Merge verl's JSON-lines log into the folder of a run that has ended, and return the last step. May be repeated.

    Validation becomes `evaluations.jsonl`, with an accuracy where the reward function returned `acc` next to `score`.
    """
    log, folder = Path(log), Path(folder)
    if not log.is_file():
        raise ValueError(f"{log} does not exist: run verl with trainer.logger=[console,file] and VERL_FILE_LOGGER_PATH")
    logged = {row["step"]: row["data"] for row in json_lines(log) if not isinstance(row, BadLine)}
    trained = {step: data for step, data in logged.items() if METRICS["loss"] in data}
    known = {line.step: line for line in read_lines(folder, Metrics)}
    recorded, last = max(known, default=0), max(trained, default=0)
    if trained and recorded not in (last, last + 1):  # a run may stop between an update and the log's line about it
        raise ValueError(
            f"{folder} has records of {recorded} rollouts and {log.name} {last} steps of the actor: "
            "policy_loss.updates is not ppo_epochs * train_batch_size / ppo_mini_batch_size"
        )
    writer = RunWriter(folder)
    writer.merge(Metrics, [_metrics(known.get(step), step, data) for step, data in trained.items()])
    writer.merge(Timing, [Timing(step=step, **_found(TIMES, data)) for step, data in trained.items()])
    writer.merge(Evaluated, [line for step, data in logged.items() for line in _evaluations(step, data)])
    return last


def _metrics(known: Metrics | None, step: int, data: dict[str, Any]) -> Metrics:
    """A line of metrics, completed from verl's log."""
    recorded = {} if known is None else known.model_dump()
    return Metrics(**recorded | {"step": step} | _found(METRICS, data))


def _found(names: dict[str, str], data: dict[str, Any]) -> dict[str, Any]:
    return {name: data[theirs] for name, theirs in names.items() if theirs in data}


def _evaluations(step: int, data: dict[str, Any]) -> list[Evaluated]:
    """One evaluation per data source."""
    found: dict[str, dict[str, Any]] = {}
    for key, value in data.items():
        if match := VALIDATION.fullmatch(key):
            values = found.setdefault(match[1], {"samples": int(match[3])})
            values["accuracy" if match[2] == "acc" else "reward"] = value
    return [Evaluated(step=step, split=split, **values) for split, values in found.items()]
