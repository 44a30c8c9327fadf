"""The scoring processes: a fork server that imports the task, and the workers that it forks."""

import contextlib
import ctypes
import json
import os
import pickle
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Collection
from multiprocessing.connection import Connection

from fspo.tasks.scoring import checked, message
from fspo.tasks.task import Example, Task

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def main(control_fd: int, trainer: int) -> None:
    """The fork server: fork a worker per order, end what dead workers leave, and end with the trainer.

    A worker that dies is seen by the trainer as a closed connection, once its children, which inherit it, are dead.
    """
    control = socket.socket(fileno=control_fd)
    wake, wake_write = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(wake_write, False)
    problem = None
    try:
        task, memory_mb = pickle.load(sys.stdin.buffer)
        task.prepare()
    except BaseException as error:
        problem = message(error)
    _silence()
    control.sendall(json.dumps(problem).encode() + b"\n")
    if problem:
        return
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    workers: dict[int, int] = {}  # slot -> process id
    while os.getppid() == trainer:
        ready, _, _ = select.select([control_fd, wake], [], [], 1.0)
        if wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)
            _kill_children(keep=workers.values())
        if control_fd in ready:
            try:
                order, fds, _, _ = socket.recv_fds(control, 4, 1)
            except OSError:
                break
            if not order:
                break
            (slot,) = struct.unpack("!I", order)
            workers.pop(slot, None)
            _kill_children(keep=workers.values())
            server, pid = os.getpid(), os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for fd in (control_fd, wake, wake_write):
                    os.close(fd)
                _work(Connection(fds[0]), task, memory_mb, server)
            os.close(fds[0])
            workers[slot] = pid
    _kill_children(keep=())


def _work(connection: Connection, task: Task, memory_mb: int, server: int) -> None:
    """A worker: score the samples that arrive until the connection closes; never returns."""
    os.setsid()
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(0)
    me = os.getpid()
    _limit_memory(memory_mb)
    while True:
        try:
            batch = connection.recv()
        except (EOFError, OSError):
            os._exit(0)
        for example, completion in batch:
            result = evaluate(task, example, completion)
            if os.getpid() != me:  # the reward forked, and this is the new process
                os._exit(0)
            _kill_children(keep=())
            try:
                connection.send_bytes(json.dumps(result).encode())
            except OSError:
                os._exit(1)
            if result[1] == "memory":
                os._exit(0)


def evaluate(task: Task, example: Example, completion: str) -> tuple[float | None, str | None, str]:
    """A score, or the kind of failure and its message; nothing that the reward raises gets out, not even an exit."""
    try:
        return checked(task, example, completion)
    except MemoryError:
        return None, "memory", "the memory limit was reached"
    except BaseException as error:
        return None, "error", message(error)


def _silence() -> None:
    """Keep the output of rewards away from the trainer's terminal."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)


def _limit_memory(memory_mb: int) -> None:
    """Limit the address space to what is in use after the imports, plus `memory_mb`."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with open("/proc/self/statm") as statm:
            taken = int(statm.read().split()[0]) * resource.getpagesize()
    except OSError:  # not Linux: the limit would not be enforced anyway
        return
    limit = taken + memory_mb * 2**20
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _kill_children(keep: Collection[int]) -> None:
    """Kill all descendants of this process except the workers in `keep` and their descendants."""
    for _ in range(200):
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        import psutil

        children = [child for child in psutil.Process().children() if child.pid not in keep]
        if not children:
            return
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in (*child.children(recursive=True), child):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child.pid, 0)
        time.sleep(0.001)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
