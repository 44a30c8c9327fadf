"""`fspo train --engine verl`: the same configuration as a run of `verl.trainer.main_ppo`.

The prompts become verl's Parquet files in the run folder, verl's reward workers call `compute_score`, which asks the
task, and `collect` merges verl's own log into the run folder. What verl needs is checked before anything is written.
Importing this module does not import verl. A script of a dry run calls it before and after verl:

    python -m fspo.engines.verl.run begin FOLDER [CHECKPOINTS]    # prepares it and prints the step to go on from
    python -m fspo.engines.verl.run end FOLDER                    # merges verl's log
"""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

from fspo import tasks
from fspo.config import TrainConfig, read
from fspo.engines.checkup import require_verl, verl_environment
from fspo.engines.translate import BAND, RULE, is_chat, start
from fspo.engines.verl import last_step
from fspo.engines.verl.job import command, dry_run, mismatch, overrides, write_prompts
from fspo.files import BadLine, json_lines
from fspo.runs import Evaluated, Metrics, Observer, RunWriter, Timing, claimed, read_lines
from fspo.runs import rows as row_files
from fspo.tasks.scoring import Scorer
from fspo.training.stopping import RunInterruptedError, interrupts

__all__ = ["collect", "compute_score", "dry_run", "train"]


def train(config: TrainConfig, folder: Path, *, resume: bool = False, observer: Observer | None = None) -> None:
    """Run `config` on verl and merge verl's log into the run folder; with `resume`, go on from its last checkpoint."""
    from transformers import AutoTokenizer

    folder, observer = folder.absolute(), observer or Observer()
    overrides(config, folder)  # refuses before anything is written
    require_verl(config)
    with claimed(folder, resume=resume):
        resumed = begin(folder) if resume else 0
        tokenizer = AutoTokenizer.from_pretrained(start(config, folder, observer.warmup, fresh=not resume))
        write_prompts(config, folder)
        RunWriter(folder).describe(config.model_dump(mode="json"), engine="verl")
        if mismatch(config) == BAND:
            observer.note(RULE)
        words = command(overrides(config, folder, is_chat(config, tokenizer.chat_template), resumed))
        observer.note(f"verl writes to {folder / 'verl.log'}")
        with (folder / "verl.log").open("a") as log:
            # In the working directory of this process, so that relative paths and modules are found.
            process = subprocess.Popen(words, env=os.environ | verl_environment(folder), stdout=log, stderr=log)
            with interrupts(Observer()) as asked_to_stop:
                code = _follow(process, folder, observer, asked_to_stop)
            if number := asked_to_stop():
                process.send_signal(signal.SIGINT)
                process.wait()
                _collect(folder)
                raise RunInterruptedError(last_step(folder / "checkpoints"), number)
        if code:
            raise ValueError(f"verl ended with exit code {code}: the reason is at the end of {folder / 'verl.log'}")
        collect(folder / "verl.jsonl", folder)


def begin(folder: Path, checkpoints: Path | None = None) -> int:
    """Prepare a run folder for the next start of verl, and return the step that it goes on from, 0 for the first.

    verl begins a new log, so the old one is merged first; what the folder has of later steps is written again.
    """
    _collect(folder)
    resumed = last_step(checkpoints or folder / "checkpoints")
    RunWriter(folder).cut(resumed or -1)
    return resumed


def _collect(folder: Path) -> None:
    """Merge verl's log into the run folder, if verl came as far as to begin one."""
    if (folder / "verl.jsonl").is_file():
        collect(folder / "verl.jsonl", folder)


def _follow(
    process: subprocess.Popen[bytes], folder: Path, observer: Observer, asked_to_stop: Callable[[], int]
) -> int | None:
    """Call the observer after every step, until verl ends or a signal asks it to; returns its exit code."""
    shown = len(read_lines(folder, Metrics))
    size = 0
    while True:
        try:
            code = process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            code = None
        path = folder / f"{Metrics.file}.jsonl"
        if path.is_file() and path.stat().st_size != size:
            size = path.stat().st_size
            lines = read_lines(folder, Metrics)
            for metrics in lines[shown:]:
                observer.step(metrics, Timing(step=metrics.step))
            shown = max(shown, len(lines))
        if code is not None or asked_to_stop():
            return code


# --- verl's log and rewards ------------------------------------------------------------------------------------------

METRICS = {
    "reward": "critic/score/mean", "length": "response_length/mean", "truncated": "response_length/clip_ratio",
    "loss": "actor/pg_loss", "grad_norm": "actor/grad_norm", "lr": "actor/lr",
    "lag": "training/off_policy/trajectory_staleness/mean",
    "lag_max": "training/off_policy/trajectory_staleness_worst/max",
}  # fmt: skip
"""By our name, verl's. A lag is how many of the sampler's weights were made since those that sampled an answer."""
LAG_MIN = "training/off_policy/trajectory_staleness/min"
TIMES = {"rollout": "timing_s/gen", "update": "timing_s/update_actor", "total": "timing_s/step"}
VALIDATION = re.compile(r"val-(?:core|aux)/(.+)/(acc|reward)/mean@(\d+)")


def collect(log: str | Path, folder: str | Path) -> int:
    """Merge verl's JSON-lines log into the folder of a run that has ended, and return the last step. May be repeated.

    A policy loss sees no rewards: the loss records lengths, log-ratios and clipping, and the rest is in the log of
    verl's `file` logger (`trainer.logger=[console,file]`, path in VERL_FILE_LOGGER_PATH). `fspo report` shows both.
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
    writer.merge(Timing, [Timing(step=step, **_renamed(TIMES, data)) for step, data in trained.items()])
    writer.merge(Evaluated, [line for step, data in logged.items() for line in _evaluations(step, data)])
    for step, data in trained.items():
        if data.get(METRICS["lag_max"]) and row_files.path_of(folder, step).is_file():
            writer.rows(step, _aged(row_files.path_of(folder, step), data))
    return last


def _aged(path: Path, data: dict[str, Any]) -> dict[str, list[Any]]:
    """The rows of a step whose answers are older than it, with their `staleness`.

    verl logs the range of a step's lags and gives a loss none: where they differ, no answer's own is known.
    """
    rows = pl.read_parquet(path)
    lag, updates = data[METRICS["lag_max"]], max(rows["update"]) + 1
    age = pl.col("update") + int(lag) * updates if lag == data[LAG_MIN] else pl.lit(None)
    return rows.with_columns(staleness=age).to_dict(as_series=False)


def _metrics(known: Metrics | None, step: int, data: dict[str, Any]) -> Metrics:
    """A line of metrics, completed from verl's log."""
    recorded = {} if known is None else known.model_dump()
    return Metrics(**recorded | {"step": step} | _renamed(METRICS, data))


def _renamed(names: dict[str, str], data: dict[str, Any]) -> dict[str, Any]:
    return {name: data[theirs] for name, theirs in names.items() if theirs in data}


def _evaluations(step: int, data: dict[str, Any]) -> list[Evaluated]:
    """One evaluation per data source."""
    sources: dict[str, dict[str, Any]] = {}
    for key, value in data.items():
        if match := VALIDATION.fullmatch(key):
            values = sources.setdefault(match[1], {"samples": int(match[3])})
            values["accuracy" if match[2] == "acc" else "reward"] = value
    return [Evaluated(step=step, split=split, **values) for split, values in sources.items()]


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, folder: str = "", **_: Any
) -> dict[str, float]:
    """The reward of an answer by the task of the run in `folder`. verl has no missing rewards: an answer that could not
    be scored gets 0, and is counted in `unscored`."""
    split, index = json.loads(ground_truth)
    task, scorer = _scorer(folder, split)
    value = scorer.score([task.example(split, index)], [solution_str])[0].value
    return {"score": value or 0.0, "acc": float(value is not None and value >= 1), "unscored": float(value is None)}


@functools.cache
def _scorer(folder: str, split: str) -> tuple[tasks.Task, Scorer]:
    """The task of a run, and a scorer that lives as long as this process."""
    config = read(Path(folder) / "config.yaml", [])
    task = tasks.get(config.task if split == "train" else config.eval_task)
    return task, Scorer(task, 1, config.scoring.timeout, config.scoring.memory_mb)


if __name__ == "__main__":
    verb, place, *given = sys.argv[1], *map(Path, sys.argv[2:])
    if verb == "begin":
        print(begin(place, *given))
    else:
        collect(place / "verl.jsonl", place)
