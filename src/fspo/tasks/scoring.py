"""Scores a batch of answers: in this process if that is safe, else in processes that can be killed.

The processes belong to a server, which imports the task once and holds a pool of the library pebble: it forks workers,
enforces time limits and replaces workers that died. It is in a session of its own: Ctrl-C reaches the trainer only.
"""

import contextlib
import math
import multiprocessing
import numbers
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from decimal import Decimal
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, ForkProcess
from typing import TYPE_CHECKING, Any

from fspo.runtime import python_command
from fspo.tasks.task import Example, Task

__all__ = ["Score", "Scorer", "first_messages"]

if TYPE_CHECKING:
    from pebble import ProcessPool

LARGEST = 1e18  # differences and squares of rewards then fit a float32, in which gradients are computed
STARTUP = 600.0  # seconds for the imports of the task, also on a busy machine
CHUNK, CHUNK_SECONDS = 32, 0.05  # most samples sent to a worker at once, and the time that they should take
OUT_OF_MEMORY = 77  # exit code of a worker

Sample = tuple[Example, str]  # with the completion


@dataclass(frozen=True)
class Score:
    """A reward, or why there is none: timeout, error, memory or crash."""

    value: float | None
    failure: str | None = None
    detail: str = ""  # the message of the error


def first_messages(scores: Iterable[Score]) -> dict[str, str]:
    """The first message of each kind of failure, without memory addresses, which differ between equal runs."""
    messages: dict[str, str] = {}
    for score in scores:
        if score.failure and score.failure not in messages:
            messages[score.failure] = re.sub(r"0x[0-9a-fA-F]{4,}", "0x...", score.detail)[:300]
    return messages


def failures(scores: Iterable[Score]) -> dict[str, int]:
    """How many answers could not be scored, by kind."""
    return dict(Counter(score.failure for score in scores if score.failure))


class Scorer:
    """Scores batches in order. An answer that cannot be scored does not stop the others.

    `timeout` is in wall-clock seconds per answer. `memory_mb` is what a scoring process may allocate in addition to the
    libraries it has loaded.
    """

    def __init__(self, task: Task, workers: int = 2, timeout: float = 10.0, memory_mb: int = 2048) -> None:
        self.task = task
        self._setup = (task, workers, timeout, memory_mb)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection[Any, Any]  # of the process

    def __enter__(self) -> "Scorer":
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def score(self, examples: Sequence[Example], completions: Sequence[str]) -> list[Score]:
        """One score per completion, in order."""
        if len(examples) != len(completions):
            raise ValueError(f"{len(examples)} examples have {len(completions)} completions: give one each")
        samples = list(zip(examples, completions, strict=True))
        with self._lock:
            server = self._start()
            if server is None:
                return [checked(self.task, example, text) for example, text in samples]
            return self._ask(server, samples)

    def _ask(self, server: "Connection[Any, Any]", samples: list[Sample]) -> list[Score]:
        """The scores of the server."""
        try:
            server.send(samples)
            scores: list[Score] = server.recv()
        except (EOFError, OSError):
            self.close()
            return [Score(None, "crash", "the server of the scoring processes ended")] * len(samples)
        except BaseException:  # as by an interrupt: results of this batch must not arrive in the next
            self.close()
            raise
        return scores

    def close(self) -> None:
        """End the scoring processes and what they started."""
        if self._process is not None:
            self._connection.close()
            self._process.terminate()
            self._process.wait()
            self._process = None

    def _start(self) -> "Connection[Any, Any] | None":
        """Start the server unless it runs; the connection to it, or None if every part of the task is trusted."""
        if all(part.trusted for part in self.task.components()):
            return None
        if self._process is not None and self._process.poll() is None:
            return self._connection
        self.close()
        self._connection, theirs = multiprocessing.Pipe()
        self._process = subprocess.Popen(
            python_command(f"from fspo.tasks.scoring import serve; serve({theirs.fileno()}, {os.getpid()})"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        theirs.close()
        try:
            self._connection.send(self._setup)
            problem = self._connection.recv() if self._connection.poll(STARTUP) else "it did not reply while importing"
        except (EOFError, OSError):
            problem = "it ended while importing"
        if problem:
            self.close()
            raise ValueError(f"the scoring process could not load the task: {' '.join(problem.split())}")
        return self._connection


def checked(task: Task, example: Example, completion: str) -> Score:
    """A score, or the kind of failure and its message; an exception of the reward is not raised."""
    try:
        value: Any = task.score(example, completion)
        number = _number(value)
        if number is None:
            problem = "not a number"
        elif not math.isfinite(number):
            problem = "not finite"
        elif abs(number) > LARGEST:
            problem = f"beyond {LARGEST:g}: scale it down"
        else:
            return Score(number)
        return Score(None, "error", f"the reward returned {type(value).__name__} {value!r:.100}, which is {problem}")
    except MemoryError:
        raise
    except Exception as error:
        return Score(None, "error", message(error))


def message(error: BaseException) -> str:
    """The class and text of an exception."""
    return "".join(traceback.format_exception_only(error)).strip()[-500:]


def _number(value: Any) -> float | None:
    """A number of Python, numpy or torch as a float, also as an array without dimensions; None if it is none."""
    if getattr(value, "shape", None) == () and callable(getattr(value, "item", None)):
        value = value.item()
    return float(value) if isinstance(value, numbers.Real | Decimal) else None


# --- the server ---


def serve(fd: int, trainer: int) -> None:
    """The main function of the server: read samples, score them in the pool, and end with the trainer."""
    signal.signal(signal.SIGTERM, lambda *_: _end())
    threading.Thread(target=_end_with, args=(trainer,), daemon=True).start()
    connection: Connection[Any, Any] = Connection(fd)
    try:
        task, workers, timeout, memory_mb = connection.recv()
        try:
            task.prepare()
            connection.send("")
        except BaseException as error:
            connection.send(message(error))
        pool = Pool(task, workers, timeout, memory_mb, fd)
        while True:
            connection.send(pool.score(connection.recv()))
    except (EOFError, OSError):
        _end()


def _end() -> None:
    for worker in multiprocessing.active_children():
        worker.terminate()
    os._exit(0)


def _end_with(trainer: int) -> None:
    while os.getppid() == trainer:
        time.sleep(0.5)
    _end()


class Pool:
    """Scores the samples of one batch after the other in worker processes. Cheap samples are sent in chunks; if a chunk
    exceeds the time limit or its worker dies, its samples are scored one by one, so that each failure has its sample.
    """

    def __init__(self, task: Task, workers: int, timeout: float, memory_mb: int, fd: int) -> None:
        self._task, self._workers, self._timeout = task, workers, timeout
        self._initargs = (task, memory_mb, fd)
        self._pool: ProcessPool | None = None
        self._samples: list[Sample] = []
        self._jobs: deque[tuple[list[int], float, int, ProcessPool, futures.Future[Any]]] = deque()
        self._chunk = 4  # until the first batch shows what a sample takes

    def score(self, samples: list[Sample]) -> list[Score]:
        """The scores of all samples, in order."""
        self._samples, order = samples, range(len(samples))
        size = max(1, min(self._chunk, len(samples) // (2 * self._workers)))
        for start in range(0, len(samples), size):
            self._schedule(list(order[start : start + size]))
        results: dict[int, Score] = {}
        seconds = 0.0
        while self._jobs:
            indices, limit, tries, pool, future = self._jobs.popleft()
            try:
                while not futures.wait([future], timeout=1.0).done:
                    if not pool.active:  # a pool that breaks forgets some of its futures
                        raise BrokenProcessPool
                scored, spent = future.result()
                seconds += spent
            except Exception as error:
                if len(indices) > 1 or (isinstance(error, BrokenProcessPool) and tries < 3):
                    for index in indices:
                        self._schedule([index], tries + 1)
                    continue
                scored = [_failure(error, limit)]
            results.update(zip(indices, scored, strict=True))
        if seconds:
            self._chunk = max(1, min(CHUNK, int(CHUNK_SECONDS * len(self._samples) / seconds)))
        return [results[index] for index in order]

    def _schedule(self, indices: list[int], tries: int = 0) -> None:
        from pebble import ProcessPool

        if self._pool is not None and not self._pool.active:  # a worker died while it was idle
            self._pool.stop()
            self._pool.join()
            self._pool = None
        if self._pool is None:
            self._pool = ProcessPool(
                self._workers, initializer=_initialise, initargs=self._initargs, context=_Context()
            )
        samples = [self._samples[index] for index in indices]
        limit = min(max(self._timeout, self._task.component(example).longest(example)) for example, _ in samples)
        try:
            future = self._pool.schedule(_score, [samples], timeout=limit)
        except RuntimeError:  # it broke just now
            return self._schedule(indices, tries)
        self._jobs.append((indices, limit, tries, self._pool, future))


def _failure(error: Exception, limit: float) -> Score:
    if isinstance(error, TimeoutError):
        return Score(None, "timeout", f"no score after {limit:g} s")
    if getattr(error, "exitcode", None) == OUT_OF_MEMORY:
        return Score(None, "memory", "the memory limit was reached")
    return Score(None, "crash", "the scoring process ended")


# --- the workers ---


class _Worker(ForkProcess):
    """A worker that leads a process group; the group is killed with it."""

    def terminate(self) -> None:
        assert self.pid is not None
        for kill in (os.killpg, os.kill):  # `setsid` may not have run yet
            with contextlib.suppress(ProcessLookupError):
                kill(self.pid, signal.SIGKILL)

    def is_alive(self) -> bool:
        if super().is_alive():
            return True
        self.terminate()
        return False

    @property
    def exitcode(self) -> int | None:
        """Never 0, which pebble takes for an ordinary end: a worker ends only by what a reward does."""
        return 1 if super().exitcode == 0 else super().exitcode


class _Context(ForkContext):
    Process = _Worker


_task: Task


def _initialise(task: Task, memory_mb: int, fd: int) -> None:
    """Prepare a new worker: it ends with the server, leads a group of its own, and has a limit of memory."""
    import ctypes
    import resource

    import psutil

    global _task
    _task = task
    os.close(fd)
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = psutil.Process().memory_info().vms + memory_mb * 2**20  # in addition to what the imports took
    with contextlib.suppress(ValueError):  # a lower limit of the machine's stays
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _score(samples: Sequence[Sample]) -> tuple[list[Score], float]:
    """Score a chunk; any exception of a reward, SystemExit included, is a failed score."""
    start, worker, results = time.perf_counter(), os.getpid(), []
    for example, completion in samples:
        try:
            results.append(checked(_task, example, completion))
        except MemoryError:
            os._exit(OUT_OF_MEMORY)  # its heap may be full of what the reward keeps
        except BaseException as error:
            results.append(Score(None, "error", message(error)))
        if os.getpid() != worker:  # the reward forked, and this is the new process
            os._exit(0)
    return results, time.perf_counter() - start
