"""The trainer's side of the scoring processes: sends samples, enforces time limits, replaces dead workers.

One process, the fork server (see `worker`), imports the task once and forks the workers. It has no threads, so that
forking is safe whatever the trainer runs, and a replacement takes milliseconds. Every process that a reward starts is a
descendant of the fork server and ends with it, also when the trainer is killed.
"""

import contextlib
import json
import os
import pickle
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait

from fspo.tasks.task import Example, Task

STARTUP = 120.0  # seconds for the imports of the task
ENDED = "the scoring process ended"
CHUNK = 32  # most samples sent to a worker at once; the time limit is per sample
LAUNCH = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from fspo.tasks.scoring.worker import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)

Result = tuple[float | None, str | None, str]


@dataclass
class _Slot:
    """One worker: its connection, the samples sent to it, and the deadline of the first of them."""

    number: int
    connection: Connection
    pending: deque[int] = field(default_factory=deque)
    deadline: float = 0.0


class Pool:
    """Scoring processes of one task."""

    def __init__(self, task: Task, workers: int, timeout: float, memory_mb: int) -> None:
        self._task = task
        self._setup = pickle.dumps((task, memory_mb))
        self._workers = workers
        self._timeout = timeout
        self._lock = threading.Lock()
        self._items: list[tuple[Example, str]] = []
        self._results: list[Result | None] = []
        self._seconds: list[float] = []  # time limit of each sample
        self._todo: deque[int] = deque()
        self._suspects: set[int] = set()  # samples that were being scored when the fork server died
        self._start()

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """A batch of samples: `submit` them, and `finish`. Samples left unfinished, as by an interrupt, are dropped."""
        with self._lock:
            self._items, self._results, self._seconds = [], [], []
            self._todo, self._suspects = deque(), set()
            try:
                yield
            finally:
                self._todo.clear()
                for slot in list(self._slots):  # results of these samples must not arrive in the next batch
                    if slot.pending:
                        self._replace(slot)

    def submit(self, items: Sequence[tuple[Example, str]]) -> None:
        """Queue samples. Without any, only attend to the workers: hand out samples, store results, end late workers."""
        self._todo.extend(range(len(self._items), len(self._items) + len(items)))
        self._items += items
        self._results += [None] * len(items)
        self._seconds += [max(self._timeout, self._task.component(e).longest(e)) for e, _ in items]
        self._collect(waiting=False)
        self._hand_out()

    def finish(self) -> list[Result]:
        """Wait for all samples of the batch; the results are in the order in which they were submitted."""
        while self._todo or any(slot.pending for slot in self._slots):
            self._hand_out()
            self._collect(waiting=True)
        return [result for result in self._results if result is not None]

    def close(self) -> None:
        """End the fork server and all its workers."""
        for slot in self._slots:
            slot.connection.close()
        self._control.close()  # closing the connection ends the fork server
        try:
            self._server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()

    def _start(self) -> None:
        self._control, theirs = socket.socketpair()
        arguments = [json.dumps(sys.path), str(theirs.fileno()), str(os.getpid())]
        self._server = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C in the terminal must reach the trainer only
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        theirs.close()
        self._slots: list[_Slot] = []
        assert self._server.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._server.stdin as stdin:
            stdin.write(self._setup)
        self._await_ready()
        self._slots = [self._fork(number) for number in range(self._workers)]

    def _await_ready(self) -> None:
        end, line = time.monotonic() + STARTUP, b""
        while not line.endswith(b"\n") and wait([self._control], max(0.0, end - time.monotonic())):
            data = self._control.recv(65536)
            if not data:
                break
            line += data
        problem = json.loads(line) if line.endswith(b"\n") else "it ended or did not reply while importing"
        if problem:
            self.close()
            sentence = " ".join(problem.split())
            raise ValueError(f"the scoring process could not load the task: {sentence}")

    def _fork(self, number: int) -> _Slot:
        """A new worker in this slot; the fork server first kills the old one and its children."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [struct.pack("!I", number)], [theirs.fileno()])
        return _Slot(number, Connection(ours.detach()))

    def _replace(self, slot: _Slot) -> None:
        slot.connection.close()
        try:
            self._slots[slot.number] = self._fork(slot.number)
        except OSError:
            self._restart()

    def _restart(self) -> None:
        """Replace a fork server that died; the samples being scored at that moment are tried once more."""
        for slot in self._slots:
            if slot.pending and slot.pending[0] not in self._suspects:
                self._suspects.add(slot.pending[0])
                self._todo.extendleft(reversed(slot.pending))
                slot.pending.clear()
            self._blame(slot, "crash", ENDED)
        self.close()
        self._start()

    def _hand_out(self) -> None:
        for slot in list(self._slots):
            if slot.pending or not self._todo:
                continue
            fair = -(-len(self._todo) // (2 * self._workers))
            chunk = [self._todo.popleft() for _ in range(min(CHUNK, fair))]
            try:
                slot.connection.send([self._items[i] for i in chunk])
            except OSError:  # the worker died while idle: no sample failed
                self._todo.extendleft(reversed(chunk))
                self._replace(slot)
                continue
            slot.pending.extend(chunk)
            slot.deadline = time.monotonic() + self._seconds[slot.pending[0]]

    def _collect(self, *, waiting: bool) -> None:
        """Store all results that have arrived; first wait for some, or for the next deadline."""
        busy = [slot for slot in self._slots if slot.pending]
        due = min((slot.deadline for slot in busy), default=0.0) if waiting else 0.0
        ready = wait([*(slot.connection for slot in busy), self._control], max(0.0, due - time.monotonic()))
        for slot in busy:
            if slot.connection in ready:
                self._drain(slot)
        if self._control in ready:  # the fork server sends nothing after its start: it has died
            self._restart()
        for slot in list(self._slots):
            if slot.pending and time.monotonic() > slot.deadline and self._drain(slot) and slot.pending:
                self._fail(slot, "timeout", f"no score after {self._seconds[slot.pending[0]]:g} s")

    def _drain(self, slot: _Slot) -> bool:
        """Store the results that have arrived; False if the worker is gone."""
        try:
            while slot.pending and slot.connection.poll(0):
                value, failure, detail = json.loads(slot.connection.recv_bytes())
                self._results[slot.pending.popleft()] = (value, failure, detail)
                if slot.pending:
                    slot.deadline = time.monotonic() + self._seconds[slot.pending[0]]
                if failure == "memory":  # the heap of this worker may be damaged
                    self._todo.extendleft(reversed(slot.pending))
                    self._replace(slot)
                    return False
        except (EOFError, OSError, ValueError):
            if self._server_died():
                self._restart()
            else:
                self._fail(slot, "crash", ENDED)
            return False
        return True

    def _server_died(self) -> bool:
        """Whether the fork server has died, not only a worker: its connection closes before its workers die."""
        try:
            return self._control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _blame(self, slot: _Slot, failure: str, detail: str) -> None:
        """Record a failure of the first pending sample and queue the others again."""
        if slot.pending:
            self._results[slot.pending.popleft()] = (None, failure, detail)
            self._todo.extendleft(reversed(slot.pending))
            slot.pending.clear()

    def _fail(self, slot: _Slot, failure: str, detail: str) -> None:
        """Record a failure of the first pending sample and replace the worker."""
        self._blame(slot, failure, detail)
        self._replace(slot)
