"""The trainer's side of scoring processes: hand out samples, watch the clock, replace what died.

One nursery process (see worker.py) imports the task once and forks the workers. It has no threads, so that
forking is safe whatever the trainer runs, a replacement costs milliseconds, and everything a reward starts
stays below it and ends with it, also when the trainer is killed.
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
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait

from fspo.tasks.base import Example, Task

STARTUP = 120.0  # seconds for the imports of the task
CHUNK = 32  # samples handed over at once; each still has its own time limit
LAUNCH = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from fspo.tasks.worker import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)

Result = tuple[float | None, str | None, str]


@dataclass
class _Slot:
    """One worker's place: its connection, what it is working on, and when the first of those is due."""

    number: int
    connection: Connection
    generation: int
    pending: deque[int] = field(default_factory=deque)
    deadline: float = 0.0


class Pool:
    def __init__(self, task: Task, workers: int, timeout: float, memory_mb: int) -> None:
        self._setup = pickle.dumps((task, memory_mb))
        self._workers = workers
        self._timeout = timeout
        self._lock = threading.Lock()
        self._generation = 0
        self._results: list[Result | None] = []
        self._todo: deque[int] = deque()
        self._suspects: set[int] = set()  # samples that were in flight when the nursery died
        self._start()

    def run(self, items: Sequence[tuple[Example, str]]) -> list[Result]:
        """Score all items; the results are in the order of the items."""
        with self._lock:
            self._results = [None] * len(items)
            self._todo = deque(range(len(items)))
            self._suspects = set()
            try:
                while self._todo or any(slot.pending for slot in self._slots):
                    self._hand_out(items)
                    self._collect()
            except BaseException:  # an interrupt: the samples in flight must not answer the next call
                for slot in self._slots:
                    if slot.pending:
                        self._replace(slot)
                raise
            return [result for result in self._results if result is not None]

    def close(self) -> None:
        for slot in self._slots:
            slot.connection.close()
        self._control.close()  # the nursery takes this as the order to end everything
        try:
            self._nursery.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._nursery.kill()
            self._nursery.wait()

    def _start(self) -> None:
        self._control, theirs = socket.socketpair()
        self._notices = b""
        arguments = [json.dumps(sys.path), str(theirs.fileno()), str(os.getpid())]
        self._nursery = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C in the terminal is for the trainer
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        theirs.close()
        self._slots: list[_Slot] = []
        assert self._nursery.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._nursery.stdin as stdin:
            stdin.write(self._setup)
        self._await_ready()
        self._slots = [self._fork(number) for number in range(self._workers)]

    def _await_ready(self) -> None:
        end = time.monotonic() + STARTUP
        while b"\n" not in self._notices and wait([self._control], max(0.0, end - time.monotonic())):
            data = self._control.recv(65536)
            if not data:
                break
            self._notices += data
        line, _, self._notices = self._notices.partition(b"\n")
        problem = json.loads(line)["error"] if line else "it ended, or did not answer, while importing"
        if problem:
            self.close()
            raise ValueError(f"the scoring process could not load the task: {problem}")

    def _fork(self, number: int) -> _Slot:
        """A new worker in a place; the nursery first kills the one that holds it, with its children."""
        self._generation += 1
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [struct.pack("!II", number, self._generation)], [theirs.fileno()])
        return _Slot(number, Connection(ours.detach()), self._generation)

    def _replace(self, slot: _Slot) -> None:
        slot.connection.close()
        try:
            self._slots[slot.number] = self._fork(slot.number)
        except OSError:
            self._restart()

    def _restart(self) -> None:
        """The nursery itself died: a new one takes over, and a sample in flight has one more try."""
        for slot in self._slots:
            if slot.pending and slot.pending[0] not in self._suspects:
                self._suspects.add(slot.pending[0])
                self._todo.extendleft(reversed(slot.pending))
                slot.pending.clear()
            self._blame(slot, "crash", "the scoring processes ended")
        self.close()
        self._start()

    def _hand_out(self, items: Sequence[tuple[Example, str]]) -> None:
        for slot in list(self._slots):
            if slot.pending or not self._todo:
                continue
            fair = -(-len(self._todo) // (2 * self._workers))
            chunk = [self._todo.popleft() for _ in range(min(CHUNK, fair))]
            try:
                slot.connection.send([items[i] for i in chunk])
            except OSError:  # it died while idle, so no sample is to blame
                self._todo.extendleft(reversed(chunk))
                self._replace(slot)
                continue
            slot.pending.extend(chunk)
            slot.deadline = time.monotonic() + self._timeout

    def _collect(self) -> None:
        """Wait for the next event and act on all that happened."""
        busy = [slot for slot in self._slots if slot.pending]
        due = min((slot.deadline for slot in busy), default=0.0)
        ready = wait([*(slot.connection for slot in busy), self._control], max(0.0, due - time.monotonic()))
        for slot in busy:
            if slot.connection in ready:
                self._drain(slot)
        if self._control in ready:
            self._read_notices()
        for slot in list(self._slots):
            if slot.pending and time.monotonic() > slot.deadline and self._drain(slot) and slot.pending:
                self._fail(slot, "timeout", f"no score after {self._timeout:g} s")

    def _drain(self, slot: _Slot) -> bool:
        """Take the results that have arrived; False when the worker is gone."""
        try:
            while slot.pending and slot.connection.poll(0):
                value, failure, detail = json.loads(slot.connection.recv_bytes())
                self._results[slot.pending.popleft()] = (value, failure, detail)
                slot.deadline = time.monotonic() + self._timeout
                if failure == "memory":  # its heap is no longer to be trusted
                    self._todo.extendleft(reversed(slot.pending))
                    self._replace(slot)
                    return False
        except (EOFError, OSError, ValueError):
            if self._nursery_died():
                self._restart()
            else:
                self._fail(slot, "crash", "the scoring process ended")
            return False
        return True

    def _read_notices(self) -> None:
        """The nursery says which worker died, which its connection hides while a child holds it open."""
        data = self._control.recv(65536)
        if not data:
            self._restart()
            return
        *lines, self._notices = (self._notices + data).split(b"\n")
        for line in lines:
            notice = json.loads(line)
            slot = self._slots[notice["slot"]]
            if slot.generation != notice["generation"] or not self._drain(slot):
                continue
            if slot.pending:
                self._fail(slot, "crash", f"the scoring process ended with status {notice['status']}")
            else:
                self._replace(slot)

    def _nursery_died(self) -> bool:
        """Its connection closes before its workers die, so this tells whose death it was."""
        try:
            return self._control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _blame(self, slot: _Slot, failure: str, detail: str) -> None:
        """The first sample in flight failed; those behind it are tried again."""
        if slot.pending:
            self._results[slot.pending.popleft()] = (None, failure, detail)
            self._todo.extendleft(reversed(slot.pending))
            slot.pending.clear()

    def _fail(self, slot: _Slot, failure: str, detail: str) -> None:
        self._blame(slot, failure, detail)
        self._replace(slot)
