"""Runs one cell: train, measure, and return a row of the results."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from fspo.comparisons.plan import Cell, Row, WarmStart

__all__ = ["commit_of_package", "make_start", "run_cell"]


def make_start(warm: WarmStart) -> str:
    """The folder of a warm start, made now if it is not in the cache."""
    from fspo import tasks
    from fspo.config import TrainConfig
    from fspo.training.warmup import warm_start

    config = TrainConfig(**warm.config)
    return warm_start(config, tasks.get(config.task))


def run_cell(cell: Cell, warm: WarmStart | None, work: Path | None, commit: str) -> Row:
    """Run a cell in a folder of its own below `work`, or in a temporary one, and remove the folder afterwards.

    Training that stops because its gradients are not finite is a result. Any other error leaves the folder below
    `work` for inspection.
    """
    if work is None:
        with tempfile.TemporaryDirectory(prefix=f"fspo-{cell.key}-") as scratch:
            return _run(cell, warm, Path(scratch) / "run", commit)
    folder = work / cell.key
    shutil.rmtree(folder, ignore_errors=True)
    row = _run(cell, warm, folder, commit)
    shutil.rmtree(folder)
    return row


def _run(cell: Cell, warm: WarmStart | None, folder: Path, commit: str) -> Row:
    import torch

    from fspo import __version__, objectives, tasks
    from fspo.comparisons.outcome import outcome
    from fspo.config import TrainConfig
    from fspo.training.loop import train

    began, cpu = time.perf_counter(), time.process_time()
    config = TrainConfig(**cell.config)
    started = config
    if warm is not None:
        start = config.model.model_copy(update={"path": make_start(warm)})
        started = config.model_copy(update={"model": start, "warmup": None})
    error = ""
    try:
        train(started, folder, handle_signals=False)
    except FloatingPointError as stop:
        error = str(stop).split(":")[0]  # what follows is advice that names the folder
    objective = objectives.get(**config.objective).model_dump(mode="json")
    measured = outcome(folder, failed=bool(error))
    optimum = tasks.get(config.eval_task).optimum()
    return {
        **cell.labels,
        "objective": json.dumps({"name": config.objective["name"], **objective}),
        "advantage": config.advantage,
        "config": json.dumps(cell.config),
        "status": "failed" if error else "finished",
        "error": error,
        "version": __version__,
        "commit": commit,
        "torch": torch.__version__,
        **measured,
        "optimum": json.dumps(optimum),
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu,
    }


@functools.cache
def commit_of_package() -> str:
    """The commit of the checkout that the package runs from, `-dirty` if files differ; empty outside a checkout."""
    folder = Path(__file__).parent.parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        if not git("ls-files", "__init__.py"):
            return ""
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "-uno", "--", ".") else "")
    except FileNotFoundError:
        return ""
