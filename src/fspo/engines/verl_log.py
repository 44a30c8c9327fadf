"""verl's log as part of a run folder.

A policy loss sees no rewards: the ledger records lengths, log-ratios and clipping, and verl's own `file` logger has
the rest (`trainer.logger='[console,file]'`, path in VERL_FILE_LOGGER_PATH). Together they feed `fspo report`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from fspo.local.records import read_lines

METRICS = {
    "reward": "critic/score/mean", "length": "response_length/mean", "truncated": "response_length/clip_ratio",
    "loss": "actor/pg_loss", "grad_norm": "actor/grad_norm", "lr": "actor/lr",
}  # fmt: skip
TIMES = {"rollout": "timing_s/gen", "update": "timing_s/update_actor", "total": "timing_s/step"}
VALIDATION = re.compile(r"val-(?:core|aux)/(.+)/(acc|reward)/mean@(\d+)")


def collect(log: str | Path, folder: str | Path) -> int:
    """Merge verl's JSON-lines log into a run folder whose run has ended; again is the same. Returns the last step.

    Validation becomes `evaluations.jsonl`: an accuracy where the reward function returned `acc` next to `score`.
    """
    log, folder = Path(log), Path(folder)
    if not log.is_file():
        raise ValueError(f"{log} does not exist: run verl with trainer.logger='[console,file]' and its path")
    logged = {row["step"]: row["data"] for row in read_lines(log)}
    trained = [step for step, data in logged.items() if METRICS["loss"] in data]
    known = {row["step"]: row for row in read_lines(folder / "metrics.jsonl")}
    last = max(trained, default=0)
    if max(known, default=0) not in (last, last + 1):  # a run may stop between the update and the line of the log
        raise ValueError(
            f"{folder} has records of {max(known, default=0)} rollouts and {log.name} {last} steps of the actor: "
            "policy_loss.updates is not ppo_epochs * train_batch_size / ppo_mini_batch_size"
        )
    for step, data in sorted(logged.items()):
        if step in trained:
            known[step] = known.get(step, {"step": step}) | _found(METRICS, data)
    _write(folder, "metrics", list(known.values()))
    _write(folder, "timings", [{"step": step} | _found(TIMES, logged[step]) for step in trained])
    _write(folder, "evaluations", [row for step, data in logged.items() for row in _evaluations(step, data)])
    return last


def _found(names: dict[str, str], data: dict[str, Any]) -> dict[str, Any]:
    return {ours: data[theirs] for ours, theirs in names.items() if theirs in data}


def _evaluations(step: int, data: dict[str, Any]) -> list[dict[str, Any]]:
    """One row a data source."""
    rows: dict[str, dict[str, Any]] = {}
    for key, value in data.items():
        if match := VALIDATION.fullmatch(key):
            row = rows.setdefault(match[1], {"step": step, "split": match[1], "samples": int(match[3])})
            row["accuracy" if match[2] == "acc" else "reward"] = value
    return list(rows.values())


def _write(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    """Replace a file of lines at once. A resumed run begins a new log, so that earlier lines are kept."""
    path, scratch = folder / f"{name}.jsonl", folder / f"{name}.writing"
    table = {(row["step"], str(row.get("split"))): row for row in (*read_lines(path), *rows)}
    scratch.write_text("".join(json.dumps(table[key]) + "\n" for key in sorted(table)), encoding="utf-8")
    scratch.replace(path)
