"""One cell: train, measure, and give back a row of the results."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from fspo.comparing.suite import Cell, Warm

Row = dict[str, Any]


def make_start(warm: Warm) -> str:
    """Make a warm start, or find it in the cache; returns its folder."""
    from fspo import tasks
    from fspo.local.config import TrainConfig
    from fspo.local.warmup import warm_start

    config = TrainConfig(**warm.config)
    return warm_start(config, tasks.get(config.task))


def run_cell(cell: Cell, warm: Warm | None, work: Path | None, commit: str) -> Row:
    """Run a cell in a folder of its own below `work`, or of the system's; the folder is gone when this returns.

    Training that ends because its gradients are not finite is a result. Any other error leaves the folder for a look.
    """
    if work is None:
        with tempfile.TemporaryDirectory(prefix=f"fspo-{cell.key}-") as scratch:
            return _run(cell, warm, Path(scratch) / "run", commit)
    folder = work / cell.key
    shutil.rmtree(folder, ignore_errors=True)
    row = _run(cell, warm, folder, commit)
    shutil.rmtree(folder)
    return row


def _run(cell: Cell, warm: Warm | None, folder: Path, commit: str) -> Row:
    import torch

    from fspo import __version__, objectives
    from fspo.comparing.outcome import outcome
    from fspo.local.config import TrainConfig
    from fspo.local.loop import train

    began, cpu = time.perf_counter(), time.process_time()
    config = TrainConfig(**cell.config)
    started = config
    if warm is not None:
        start = config.model.model_copy(update={"path": make_start(warm)})
        started = config.model_copy(update={"model": start, "warmup": None})
    error = ""
    try:
        train(started, folder)
    except FloatingPointError as stop:
        error = str(stop).split(":")[0]  # the rest advises, and names the folder
    objective = objectives.get(**config.objective).model_dump(mode="json")
    measured = outcome(folder, failed=bool(error))
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
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu,
    }


@functools.cache
def commit_of_package() -> str:
    """The commit that this package's files are of, with `-dirty` if they differ from it; empty outside a checkout."""
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
