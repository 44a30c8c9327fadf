"""Runs the cells of a suite in worker processes, again if asked, and finds the ranges that its methods are tuned over.

A worker lives as long as the suite, so that libraries are loaded once, and computes with one thread, so that one cell
per core runs at a time. Only the process that started the workers decides what runs and writes the results.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import multiprocessing as mp
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fspo import objectives, ratios
from fspo.comparisons.plan import SCHEMA_VERSION, Cell, Job, Plan, Row, WarmStart, train_config
from fspo.comparisons.store import Store, differences
from fspo.comparisons.suite import Values, merge
from fspo.text import duration

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}


# --- one cell ---------------------------------------------------------------------------------------------------------


def make_start(warm: WarmStart) -> str:
    """The folder of a warm start, made now if it is not in the cache."""
    from fspo import tasks
    from fspo.training.warmup import warm_start

    config = train_config(warm.config)
    return warm_start(config, tasks.get(config.task))


def run_cell(cell: Cell, warm: WarmStart | None, work: Path | None) -> Row:
    """Run a cell in a folder of its own below `work`, or in a temporary one, and remove the folder afterwards.

    Training that stops because its gradients are not finite is a result. Any other error leaves the folder below
    `work` for inspection.
    """
    if work is None:
        with tempfile.TemporaryDirectory(prefix=f"fspo-{cell.key}-") as scratch:
            return _run(cell, warm, Path(scratch) / "run")
    folder = work / cell.key
    shutil.rmtree(folder, ignore_errors=True)
    row = _run(cell, warm, folder)
    shutil.rmtree(folder)
    return row


def _run(cell: Cell, warm: WarmStart | None, folder: Path) -> Row:
    import torch

    from fspo import __version__, tasks
    from fspo.comparisons.outcome import outcome

    began, cpu = time.perf_counter(), time.process_time()
    config = train_config(cell.config)
    error = ""
    try:
        _train(cell.config, warm, folder)
    except FloatingPointError as stop:
        error = str(stop).split(":")[0]  # what follows is advice that names the folder
    objective = objectives.get(**config.objective).model_dump(mode="json")
    return {
        **cell.labels,
        "schema": SCHEMA_VERSION,
        "config": json.dumps(cell.config),
        "objective": json.dumps({"name": config.objective["name"], **objective}),
        "advantage": config.advantage,
        "status": "failed" if error else "finished",
        "error": error,
        "version": __version__,
        "commit": commit_of_package(),
        "torch": torch.__version__,
        **outcome(folder, failed=bool(error)),
        "optimum": json.dumps(tasks.get(config.eval_task).optimum()),
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu,
    }


def _train(values: Values, warm: WarmStart | None, folder: Path) -> None:
    from fspo.training.loop import train

    config = train_config(values)
    if warm is not None:
        start = config.model.model_copy(update={"path": make_start(warm)})
        config = config.model_copy(update={"model": start, "warmup": None})
    train(config, folder, handle_signals=False)


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


def rerun(plan: Plan, cells: Iterable[Cell], before: dict[str, Row], store: Store) -> Iterator[tuple[Cell, list[str]]]:
    """Run cells again, one after the other, into another store: each with the columns that differ from before."""
    for cell in cells:
        store.add(run_cell(cell, plan.warm[cell.warm] if cell.warm else None, None) | {"suite": plan.suite.name})
        yield cell, differences(before[cell.key], store.rows[-1])


# --- ranges set alike -------------------------------------------------------------------------------------------------


class Pilot(objectives.FSPO):
    """FSPO that keeps the token log-ratios of its updates: all methods' ranges are set on the same responses."""

    name: ClassVar[str] = "pilot"
    seen: ClassVar[list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]] = []

    def __call__(  # type: ignore[override]
        self, logprobs: Any, old_logprobs: Any, advantages: Any, mask: Any, **rest: Any
    ) -> Any:
        tokens = (logprobs - old_logprobs).detach()[mask].double().numpy()
        self.seen.append((tokens, mask.sum(-1).double().numpy(), advantages.double().numpy()))
        return super().__call__(logprobs, old_logprobs, advantages, mask, **rest)


def ranges(plan: Plan, setting: str) -> dict[str, list[Values]]:
    """For every tuned method, the ranges that clip the wanted shares of the first off-policy updates.

    The responses are those of a short run on the suite's first task, the same for all methods.
    """
    suite = plan.suite
    task = next(iter(suite.tasks))
    cell = next(cell for cell in plan.test if (cell.task, cell.setting) == (task, setting))
    steps = train_config(cell.config).rollout.staleness + 2
    pilot = {"objective": {"name": f"{__name__}:Pilot"}, "steps": steps, "log": {"cosine": 0}}
    Pilot.seen.clear()
    with tempfile.TemporaryDirectory(prefix="fspo-ranges-") as scratch:
        _train(merge(cell.config, pilot), plan.warm[cell.warm] if cell.warm else None, Path(scratch) / "run")
    rows = _responses(Pilot.seen)
    result: dict[str, list[Values]] = {}
    for label, method in suite.methods.items():
        for rate in suite.tuning.clip_rates if method.tuned else []:
            at = objectives.get(**method.objective).at_clip_rate(rows, rate)
            if at.objective is None:
                raise ValueError(f"{label} {at.note}: leave out `tuned`")
            values = {name: float(f"{value:.3g}") for name, value in at.objective.clip_parameters.items()}
            result.setdefault(label, []).append(values)
    return result


def _responses(updates: Iterable[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]) -> objectives.Responses:
    """The responses of the updates that were off-policy, as one table."""
    parts = []
    for tokens, lengths, advantages in updates:
        S = np.add.reduceat(tokens, np.cumsum(lengths.astype(int)) - lengths.astype(int))
        if ratios.off_policy(S, lengths):
            parts.append((S, lengths, np.sign(advantages), tokens))
    S, L, sign, tokens = (np.concatenate(column) for column in zip(*parts, strict=True))
    return objectives.Responses(S, L, sign, tokens)


# --- a suite ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JobResult:
    """The row of a finished cell, nothing for a warm start, or an error."""

    row: Row | None
    seconds: float
    error: str = ""
    trace: str = ""


class CellError(ValueError):
    """A job that raised an error: the suite stops, and finished cells are kept."""

    def __init__(self, job: Job, problem: str, trace: str = "") -> None:
        super().__init__(f"{job}: {problem}")
        self.trace = trace


def run(plan: Plan, store: Store, executor: LocalExecutor, progress: SuiteProgress, until: float = math.inf) -> None:
    """Run the cells that the store lacks; start none once the monotonic clock has passed `until`."""
    running: dict[str, Job] = {}
    warmed: set[str] = set()
    while True:
        if time.monotonic() < until:
            for job in plan.ready(store.rows, running, warmed)[: executor.size - len(running)]:
                warm = plan.warm[job.warm] if isinstance(job, Cell) and job.warm else None
                executor.submit(job, warm)
                running[job.key] = job
                progress.started(job)
        if not running:
            return
        for job, done in executor.wait():
            if done.error:
                raise CellError(job, done.error, done.trace)
            del running[job.key]
            if done.row is None:
                warmed.add(job.key)
            else:
                store.add(done.row | {"suite": plan.suite.name})
            progress.finished(job, done.row, done.seconds)


def perform(job: Job, warm: WarmStart | None, work: Path) -> JobResult:
    """Do a job in this process, in a folder below `work`."""
    began = time.perf_counter()
    row = None
    try:
        _prepare()
        if isinstance(job, WarmStart):
            make_start(job)
        else:
            row = run_cell(job, warm, work)
    except Exception as error:
        problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return JobResult(None, time.perf_counter() - began, problem, traceback.format_exc())
    return JobResult(row, time.perf_counter() - began)


class LocalExecutor:
    """Worker processes on this machine. They end with this process, however it ends."""

    def __init__(self, size: int, work: Path) -> None:
        self.size, self._work = size, work
        self._context = mp.get_context("spawn")
        self._workers: dict[Connection, Any] = {}
        self._jobs: dict[Connection, Job] = {}
        with _shielded(ONE_THREAD):
            for _ in range(size):
                ours, theirs = self._context.Pipe()
                process = self._context.Process(target=_serve, args=(theirs,), daemon=False)
                process.start()
                theirs.close()
                self._workers[ours] = process

    def submit(self, job: Job, warm: WarmStart | None) -> None:
        connection = next(c for c in self._workers if c not in self._jobs)
        self._jobs[connection] = job
        with contextlib.suppress(BrokenPipeError):  # the worker died: `wait` returns the error
            connection.send((job, warm, self._work))

    def wait(self) -> list[tuple[Job, JobResult]]:
        """Block until at least one job has ended."""
        result = []
        for connection in wait(list(self._jobs)):
            assert isinstance(connection, Connection)
            job = self._jobs.pop(connection)
            try:
                result.append((job, connection.recv()))
            except (EOFError, ConnectionResetError):
                process = self._workers[connection]
                process.join()
                cause = f"signal {-process.exitcode}" if process.exitcode < 0 else f"exit code {process.exitcode}"
                result.append((job, JobResult(None, 0.0, f"its worker process died ({cause})")))
        return sorted(result, key=lambda pair: bool(pair[1].error))  # results are stored before an error stops all

    def close(self) -> None:
        """Idle workers end when their pipe closes; busy ones are terminated."""
        for connection, process in self._workers.items():
            if connection in self._jobs:
                process.terminate()
            connection.close()
        for process in self._workers.values():
            process.join(1)
            process.terminate()
            process.join()
        self._workers.clear()


def _serve(connection: Connection) -> None:
    """The main loop of a worker: requests in, results out, until the pipe closes or the parent process ends."""
    with contextlib.suppress(OSError):
        os.setpgrp()  # Ctrl-C must reach the parent alone: training would stop one cell and go on
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _prepare()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            connection.send(perform(*connection.recv()))


def _prepare() -> None:
    """Import what every cell needs, before the first one arrives."""
    import fspo.comparisons.outcome
    import fspo.training.loop  # noqa: F401
    from fspo.runtime import quiet

    quiet()


def _end_with_parent() -> None:
    parent = mp.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


@contextlib.contextmanager
def _shielded(environment: dict[str, str]) -> Iterator[None]:
    """Child processes that start here get this environment, and ignore Ctrl-C until they leave this process group."""
    before = {name: os.environ.get(name) for name in environment}
    main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    os.environ |= environment
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        if main:
            signal.signal(signal.SIGINT, handler)


class SuiteProgress:
    """Says one line per job, with the time left."""

    def __init__(self, say: Callable[[str], None], done: int, total: int, workers: int) -> None:
        self.say, self.done, self.total, self.workers = say, done, total, workers
        self._cells, self._seconds = 0, 0.0

    def started(self, job: Job) -> None:
        """A warm start may take minutes, and is announced; a cell is shown when it is finished."""
        if isinstance(job, WarmStart):
            self.say(f"{job}: being made, or taken from the cache")

    def finished(self, job: Job, row: Row | None, seconds: float) -> None:
        if row is None:
            self.say(f"{job}: ready after {seconds:.1f} s")
            return
        self.done += 1
        self._cells += 1
        self._seconds += seconds
        result = row["error"] if row["status"] == "failed" else f"{row['start']:.1%} to {row['final']:.1%}"
        left = duration((self.total - self.done) * self._seconds / self._cells / self.workers)
        self.say(f"{self.done} of {self.total}: {job}: {result} ({seconds:.1f} s), {left} left")
