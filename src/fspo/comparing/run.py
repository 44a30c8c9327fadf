"""Runs the cells of a suite: worker processes on this machine, or tasks of a Ray cluster.

A worker lives as long as the suite, so that libraries are loaded once, and computes with one thread, so that as many
cells as cores run side by side. The driver alone decides what runs and writes the results.
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

from fspo.comparing.cell import commit_of_package, make_start, run_cell
from fspo.comparing.store import Store
from fspo.comparing.suite import Cell, Job, Plan, Row, Warm

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}


@dataclass(frozen=True)
class Order:
    """A job with what it needs."""

    job: Job
    warm: Warm | None  # where a cell starts from
    work: Path | None
    commit: str


@dataclass(frozen=True)
class Done:
    """What became of a job."""

    row: Row | None
    seconds: float
    error: str = ""
    trace: str = ""


class Crew(Protocol):
    """Whoever does the jobs."""

    size: int
    work: Path | None  # for the folders of cells; None is the system's folder for such things

    def submit(self, order: Order) -> None: ...
    def wait(self) -> list[tuple[Job, Done]]: ...
    def close(self) -> None: ...


class Watcher(Protocol):
    """Whoever looks on."""

    def started(self, job: Job) -> None: ...
    def finished(self, job: Job, row: Row | None, seconds: float) -> None: ...


class CellError(ValueError):
    """A job that could not be done: the suite stops, and what is finished stays."""

    def __init__(self, job: Job, said: str, trace: str = "") -> None:
        super().__init__(f"{job}: {said}")
        self.trace = trace


def run(plan: Plan, store: Store, crew: Crew, watcher: Watcher, until: float = float("inf")) -> None:
    """Run what is missing in the store, row by row; start nothing once the monotonic clock has passed `until`."""
    running: dict[str, Job] = {}
    warmed: set[str] = set()
    while True:
        if time.monotonic() < until:
            for job in plan.ready(store.rows, running, warmed)[: crew.size - len(running)]:
                warm = plan.warm[job.warm] if isinstance(job, Cell) and job.warm else None
                crew.submit(Order(job, warm, crew.work, commit_of_package()))
                running[job.key] = job
                watcher.started(job)
        if not running:
            return
        for job, done in crew.wait():
            if done.error:
                raise CellError(job, done.error, done.trace)
            del running[job.key]
            if done.row is None:
                warmed.add(job.key)
            else:
                store.add(done.row | {"suite": plan.suite.name})
            watcher.finished(job, done.row, done.seconds)


def perform(order: Order) -> Done:
    """Do a job, here and now."""
    began = time.perf_counter()
    row = None
    try:
        _prepare()
        if isinstance(order.job, Warm):
            make_start(order.job)
        else:
            row = run_cell(order.job, order.warm, order.work, order.commit)
    except Exception as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return Done(None, time.perf_counter() - began, said, traceback.format_exc())
    return Done(row, time.perf_counter() - began)


class Processes:
    """Workers on this machine, each with a pipe. They end with this process, however it ends."""

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

    def submit(self, order: Order) -> None:
        connection = next(c for c in self._workers if c not in self._jobs)
        self._jobs[connection] = order.job
        with contextlib.suppress(BrokenPipeError):  # it died; `wait` says so
            connection.send(order)

    def wait(self) -> list[tuple[Job, Done]]:
        result = []
        for connection in wait(list(self._jobs)):
            assert isinstance(connection, Connection)
            job = self._jobs.pop(connection)
            try:
                result.append((job, connection.recv()))
            except (EOFError, ConnectionResetError):
                process = self._workers[connection]
                process.join()
                how = f"signal {-process.exitcode}" if process.exitcode < 0 else f"exit code {process.exitcode}"
                result.append((job, Done(None, 0.0, f"its worker process died ({how})")))
        return sorted(result, key=lambda pair: bool(pair[1].error))  # what is finished is kept first

    def close(self) -> None:
        """Idle workers end by themselves; one in the midst of a cell is ended."""
        for connection, process in self._workers.items():
            if connection in self._jobs:
                process.terminate()
            connection.close()
        for process in self._workers.values():
            process.join()
        self._workers.clear()


class Cluster:
    """Tasks of a Ray cluster, one core each. The cluster's machines need this package."""

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
        self.size = size or max(1, int(ray.cluster_resources().get("CPU", 1)))
        runtime = {"env_vars": ONE_THREAD}
        self._perform = ray.remote(num_cpus=1, max_retries=0, runtime_env=runtime)(perform)
        self._jobs: dict[Any, Job] = {}

    def submit(self, order: Order) -> None:
        self._jobs[self._perform.remote(order)] = order.job

    def wait(self) -> list[tuple[Job, Done]]:
        ready, _ = self._ray.wait(list(self._jobs), num_returns=1)
        result = []
        for reference in ready:
            job = self._jobs.pop(reference)
            try:
                result.append((job, self._ray.get(reference)))
            except self._ray.exceptions.RayError as error:
                said = f"its Ray worker died ({type(error).__name__})"
                result.append((job, Done(None, 0.0, said, str(error))))
        return result

    def close(self) -> None:
        for reference in self._jobs:
            self._ray.cancel(reference, force=True)
        self._ray.shutdown()


def _serve(connection: Connection) -> None:
    """A worker: jobs in, rows out, until the pipe closes or the driver is gone."""
    with contextlib.suppress(OSError):
        os.setpgrp()  # Ctrl-C is the driver's: training would take it as the wish to stop one cell
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _prepare()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            connection.send(perform(connection.recv()))


def _prepare() -> None:
    """Load what every cell needs while there is nothing else to do."""
    import fspo.comparing.outcome
    import fspo.local.loop  # noqa: F401
    from fspo.local.runtime import quiet

    quiet()


def _end_with_parent() -> None:
    parent = mp.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


@contextlib.contextmanager
def _shielded(environment: dict[str, str]) -> Iterator[None]:
    """Children started here have this environment, and ignore Ctrl-C until they have left our process group."""
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
