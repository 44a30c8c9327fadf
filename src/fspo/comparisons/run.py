"""Runs the cells of a suite in worker processes, and finds the ranges that its methods are tuned over.

A worker runs cells one after the other, so that libraries are loaded once, with one thread and one instruction set, so
that digits depend little on the machine. Only the process that started the workers writes the results.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import multiprocessing as mp
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from multiprocessing import connection
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fspo import objectives, ratios
from fspo.comparisons.plan import SCHEMA_VERSION, Cell, Job, Plan, Row, WarmStart, train_config
from fspo.comparisons.results import Store, outcome
from fspo.comparisons.suite import Values, merge
from fspo.text import duration

Result = tuple[Row | None, float]  # of a job: the row of a cell, and seconds

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
ONE_INSTRUCTION_SET = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
"""Sums of AVX-512 kernels have another order: with it a cell would have other digits than on a processor without."""


# --- one cell ---------------------------------------------------------------------------------------------------------


def make_start(warm: WarmStart) -> str:
    """The folder of a warm start, made now if it is not in the cache."""
    from fspo import tasks
    from fspo.training.warmup import warm_start

    config = train_config(warm.config)
    return warm_start(config, tasks.get(config.task))


def run_cell(cell: Cell, warm: WarmStart | None, work: Path) -> Row:
    """Run a cell in a folder of its own below `work`, and remove the folder afterwards. Training that stops because its
    gradients are not finite is a result; any other error leaves the folder for inspection."""
    import torch

    from fspo import __version__, tasks

    folder = work / cell.key
    shutil.rmtree(folder, ignore_errors=True)
    began, cpu = time.perf_counter(), time.process_time()
    config = train_config(cell.config)
    error = ""
    try:
        _train(cell.config, warm, folder)
    except FloatingPointError as stop:
        error = str(stop).split(":")[0]  # what follows is advice that names the folder
    objective = objectives.get(**config.objective).model_dump(mode="json")
    row = {
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
    shutil.rmtree(folder)
    return row


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
        _train(merge(cell.config, pilot), plan.warm_of(cell), Path(scratch) / "run")
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


class CellError(ValueError):
    """A job that raised an error: the suite stops, and finished cells are kept."""

    def __init__(self, job: Job, problem: str, trace: str = "") -> None:
        super().__init__(f"{job}: {problem}")
        self.trace = trace


def run(
    plan: Plan, store: Store, pool: Executor, size: int, work: Path, say: Callable[[str], None], until: float = math.inf
) -> None:
    """Run the cells that the store lacks, `size` at a time, each in a folder below `work`.

    None is started once the monotonic clock has passed `until`. `say` gets one line per job, with the time left.
    """
    running: dict[Future[Result], Job] = {}
    warmed: set[str] = set()
    done, took = len(plan.finished(store.rows)), []
    while True:
        if time.monotonic() < until:
            for job in plan.ready(store.rows, {job.key for job in running.values()}, warmed)[: size - len(running)]:
                if isinstance(job, WarmStart):
                    say(f"{job}: being made, or taken from the cache")
                with _ignoring_interrupts():
                    running[pool.submit(perform, job, plan.warm_of(job), work)] = job
        if not running:
            return
        ended = wait(running, return_when=FIRST_COMPLETED).done
        for future in sorted(ended, key=lambda end: end.exception() is not None):  # results before errors
            job = running.pop(future)
            row, seconds = _result(future, job)
            if row is None:
                warmed.add(job.key)
                say(f"{job}: ready after {seconds:.1f} s")
                continue
            store.add(row | {"suite": plan.suite.name})
            done += 1
            took.append(seconds)
            result = row["error"] if row["status"] == "failed" else f"{row['start']:.1%} to {row['final']:.1%}"
            left = duration((plan.total - done) * sum(took) / len(took) / size)
            say(f"{done} of {plan.total}: {job}: {result} ({seconds:.1f} s), {left} left")


def perform(job: Job, warm: WarmStart | None, work: Path) -> Result:
    """Do a job in this process: the row of a cell, or None for a warm start, and the seconds that it took."""
    began = time.perf_counter()
    row = None
    if isinstance(job, WarmStart):
        make_start(job)
    else:
        row = run_cell(job, warm, work)
    return row, time.perf_counter() - began


def _result(future: Future[Result], job: Job) -> Result:
    try:
        return future.result()
    except BrokenExecutor:
        raise CellError(job, "a worker process died, killed or out of memory") from None
    except Exception as error:
        problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise CellError(job, problem, "".join(traceback.format_exception(error))) from None


@contextlib.contextmanager
def workers(size: int) -> Iterator[Executor]:
    """Worker processes of one thread each. They end with this context or with this process, however it ends."""
    before = os.environ.copy()  # what follows is for the processes that start from here on
    os.environ |= ONE_THREAD | (ONE_INSTRUCTION_SET if platform.machine() in ("x86_64", "AMD64") else {})
    pool = ProcessPoolExecutor(size, mp.get_context("spawn"), initializer=_prepare)
    try:
        yield pool
    finally:
        for process in mp.active_children():
            process.terminate()  # a cell may take minutes
        pool.shutdown(cancel_futures=True)
        os.environ.clear()
        os.environ.update(before)


def _prepare() -> None:
    """Import what every cell needs, before the first one arrives."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import fspo.training.loop  # noqa: F401
    from fspo.runtime import quiet

    quiet()


def _end_with_parent() -> None:
    parent = mp.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


@contextlib.contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """A process that starts here ignores Ctrl-C for good: it is this process that stops the suite."""
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
