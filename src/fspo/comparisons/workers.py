"""Runs the cells of a suite: in worker processes on this machine, or as tasks of a Ray cluster.

A worker lives as long as the suite, so that libraries are loaded once, and computes with one thread, so that one cell
per core runs at a time. Only the process that started the workers decides what runs and writes the results.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing as mp
import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

from fspo.comparisons.cell import commit_of_package, make_start, run_cell
from fspo.comparisons.plan import Cell, Job, Plan, Row, WarmStart
from fspo.comparisons.store import Store

__all__ = [
    "CellError", "Executor", "JobObserver", "JobRequest", "JobResult", "LocalExecutor", "RayExecutor", "perform", "run",
]  # fmt: skip

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}


@dataclass(frozen=True)
class JobRequest:
    """A job, with all that a worker needs to do it."""

    job: Job
    warm: WarmStart | None  # that a cell starts from
    work: Path | None
    commit: str


@dataclass(frozen=True)
class JobResult:
    """The row of a finished cell, nothing for a warm start, or an error."""

    row: Row | None
    seconds: float
    error: str = ""
    trace: str = ""


class Executor(Protocol):
    """Does up to `size` jobs at a time."""

    size: int
    work: Path | None  # holds the folders of cells; None for temporary folders

    def submit(self, request: JobRequest) -> None: ...
    def wait(self) -> list[tuple[Job, JobResult]]:
        """Block until at least one job has ended."""

    def close(self) -> None: ...


class JobObserver(Protocol):
    """Callbacks of the jobs of a suite, such as for the progress bar."""

    def started(self, job: Job) -> None: ...
    def finished(self, job: Job, row: Row | None, seconds: float) -> None: ...


class CellError(ValueError):
    """A job that raised an error: the suite stops, and finished cells are kept."""

    def __init__(self, job: Job, problem: str, trace: str = "") -> None:
        super().__init__(f"{job}: {problem}")
        self.trace = trace


def run(plan: Plan, store: Store, executor: Executor, observer: JobObserver, until: float = float("inf")) -> None:
    """Run the cells that the store lacks; start none once the monotonic clock has passed `until`."""
    running: dict[str, Job] = {}
    warmed: set[str] = set()
    while True:
        if time.monotonic() < until:
            for job in plan.ready(store.rows, running, warmed)[: executor.size - len(running)]:
                warm = plan.warm[job.warm] if isinstance(job, Cell) and job.warm else None
                executor.submit(JobRequest(job, warm, executor.work, commit_of_package()))
                running[job.key] = job
                observer.started(job)
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
            observer.finished(job, done.row, done.seconds)


def perform(request: JobRequest) -> JobResult:
    """Do a job in this process."""
    began = time.perf_counter()
    row = None
    try:
        _prepare()
        if isinstance(request.job, WarmStart):
            make_start(request.job)
        else:
            row = run_cell(request.job, request.warm, request.work, request.commit)
    except Exception as error:
        problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return JobResult(None, time.perf_counter() - began, problem, traceback.format_exc())
    return JobResult(row, time.perf_counter() - began)


class LocalExecutor:
    """Worker processes on this machine. They end with this process, however it ends."""

    def __init__(self, size: int, work: Path) -> None:
        self.size = size
        self.work: Path | None = work
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

    def submit(self, request: JobRequest) -> None:
        connection = next(c for c in self._workers if c not in self._jobs)
        self._jobs[connection] = request.job
        with contextlib.suppress(BrokenPipeError):  # the worker died: `wait` returns the error
            connection.send(request)

    def wait(self) -> list[tuple[Job, JobResult]]:
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
        return sorted(
            result, key=lambda pair: bool(pair[1].error)
        )  # finished cells are stored before an error stops the suite

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


class RayExecutor:
    """Tasks of a Ray cluster, one core each. This package must be installed on its machines."""

    def __init__(self, address: str, size: int | None) -> None:
        try:
            import ray
        except ImportError:
            raise ValueError("--ray needs Ray, which is not installed: pip install ray") from None
        self._ray = ray
        self.work: Path | None = None
        local: dict[str, Any] = {"include_dashboard": False, "num_cpus": size} if address == "local" else {}
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **local)
        except (ConnectionError, ValueError) as error:
            raise ValueError(f"no Ray cluster answers at {address}: {' '.join(str(error).split())}") from None
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        self.size = size or max(1, int(resources.get("CPU", 1)))
        runtime = {"env_vars": ONE_THREAD}
        self._perform = ray.remote(num_cpus=1, max_retries=0, runtime_env=runtime)(perform)
        self._jobs: dict[Any, Job] = {}

    def submit(self, request: JobRequest) -> None:
        self._jobs[self._perform.remote(request)] = request.job

    def wait(self) -> list[tuple[Job, JobResult]]:
        ready, _ = self._ray.wait(list(self._jobs), num_returns=1)
        result = []
        for reference in ready:
            job = self._jobs.pop(reference)
            try:
                result.append((job, self._ray.get(reference)))
            except self._ray.exceptions.RayError as error:
                problem = f"its Ray worker died ({type(error).__name__})"
                result.append((job, JobResult(None, 0.0, problem, str(error))))
        return result

    def close(self) -> None:
        for reference in self._jobs:
            self._ray.cancel(reference, force=True)
        self._ray.shutdown()


def _serve(connection: Connection) -> None:
    """The main loop of a worker: requests in, results out, until the pipe closes or the parent process ends."""
    with contextlib.suppress(OSError):
        os.setpgrp()  # Ctrl-C must reach the parent alone: training would stop one cell and go on
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _prepare()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            connection.send(perform(connection.recv()))


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
