"""Run an untrusted Python program behind walls: its own root, namespaces, limits and a filter of system calls."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from fspo.tasks.sandbox import backends
from fspo.tasks.sandbox.file_tree import DEVICES, python_tree
from fspo.tasks.sandbox.syscall_filter import seccomp_program

LONGEST = 100_000  # bytes of a program: it is passed as one argument, and Linux allows 128 KiB
GRACE = 10.0  # seconds to build the walls
Isolation = Literal["full", "limits"]


@dataclass(frozen=True)
class Limits:
    """What each run of a program may use."""

    seconds: float = 4.0  # of wall-clock time, and of CPU time rounded up
    memory_mb: int = 512  # address space of each process, and memory of all together
    processes: int = 8
    file_mb: int = 8
    output_kb: int = 256
    answer_seconds: float = 600.0  # wall-clock time of all runs together


@dataclass(frozen=True)
class Outcome:
    """What a program printed, and how its run ended: ok, error, timeout, or memory or output if it used too much."""

    status: str
    stdout: str


class _RefusedError(Exception):
    """A back end could not build its walls on this machine."""


_refusals: dict[str, str] = {}  # back end -> why it does not work on this machine


def run_python(
    code: str,
    inputs: Sequence[str],
    limits: Limits = Limits(),  # noqa: B008  (frozen)
    isolation: Isolation = "full",
    stop_early: bool = False,
) -> list[Outcome]:
    """One outcome per input; with `stop_early`, the first run that fails is the last.

    Whatever the program does is in its outcomes. `RuntimeError` means that it was not started.
    """
    if sys.platform != "linux":
        raise RuntimeError("the sandbox for programs needs Linux: use another task on this machine")
    if len(code.encode("utf-8", "replace")) > LONGEST or "\0" in code:
        return [Outcome("error", "") for _ in inputs]
    code = code.encode("utf-8", "replace").decode()
    job = {"code": code, "inputs": list(inputs), "stop_early": stop_early, **asdict(limits)}
    if isolation == "limits":
        try:
            return _outcomes(_replies("limits", job), job)
        except _RefusedError as refused:
            raise RuntimeError(f"programs cannot be run on this machine ({refused}): use another task") from None
    for backend in backends.ISOLATED:
        if backend in _refusals:
            continue
        try:
            return _outcomes(_replies(backend, job), job)
        except _RefusedError as refused:
            _refusals[backend] = str(refused)
    reasons = "; ".join(f"{backend}: {reason}" for backend, reason in _refusals.items())
    _refusals.clear()  # a refusal may pass, as when the machine was short of memory
    raise RuntimeError(
        f"programs cannot be isolated on this machine ({reasons}): install bubblewrap or allow user namespaces, "
        f"or set isolation=limits to run them where they can read your files"
    )


def working_backend() -> str:
    """The back end that isolates programs on this machine; `RuntimeError` says why there is none."""
    run_python("", [""])
    return next(backend for backend in backends.ISOLATED if backend not in _refusals)


def _replies(backend: str, job: dict[str, Any]) -> list[dict[str, Any]]:
    """Run the job; returns the lines that the supervisor wrote before it ended or its time was over."""
    tree, uid = python_tree(), backends.spare_user()
    try:
        command = backends.command(backend, tree, uid)
        program = seccomp_program().hex()
    except RuntimeError as error:
        if backend != "limits":
            raise _RefusedError(str(error)) from None
        command, program = backends.supervisor(sys.executable), ""
    walls = {"executable": tree.executable, "mounts": tree.mounts, "links": (*tree.links, *backends.DEVICE_LINKS)}
    job = {**job, **walls, "backend": backend, "uid": uid, "devices": DEVICES, "filter": program}
    # Killing a program that exceeds its time takes up to a second.
    runs = len(job["inputs"])
    longest = GRACE + runs + min(job["answer_seconds"], runs * job["seconds"])
    with _folder(backend) as folder:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env={},
            start_new_session=True,
        )
        try:
            text, errors = process.communicate(json.dumps(job).encode(), timeout=longest)
        except subprocess.TimeoutExpired:
            _kill(process)
            text, errors = process.communicate()
        finally:
            _kill(process)
            process.wait()
    lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith(b"\n")]
    if not lines:
        reason = errors.decode("utf-8", "replace").strip().rpartition("\n")[2][:200]
        raise _RefusedError(reason or "the supervisor ended before the program started")
    if "refused" in lines[-1]:
        raise _RefusedError(lines[-1]["refused"])
    return lines


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _outcomes(lines: list[dict[str, Any]], job: dict[str, Any]) -> list[Outcome]:
    """The outcomes that arrived; a run without one was not reached in time, or the program ended its supervisor."""
    found = [Outcome(**line) for line in lines if "status" in line]
    if job["stop_early"] and any(outcome.status != "ok" for outcome in found):
        return found
    return found + [Outcome("timeout", "")] * (len(job["inputs"]) - len(found))


@contextlib.contextmanager
def _folder(backend: str) -> Iterator[str]:
    """Where the supervisor starts: with limits only, a new folder of the host in which the programs run."""
    if backend != "limits":
        yield "/"
        return
    folder = tempfile.mkdtemp(prefix="fspo-")
    os.chmod(folder, 0o711)
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):  # a program that has ended its supervisor may still write
            remove(folder)


def remove(folder: str) -> None:
    """Remove a folder whatever is in it: no path is used here, so that folders may be nested to any depth."""
    flags = os.O_RDONLY | os.O_DIRECTORY
    here = os.open(folder, flags)
    names: list[str] = []
    remaining = [_without_files(here)]  # folders in the open folder and in each of those above it
    while names or remaining[-1]:
        if remaining[-1]:
            names.append(remaining[-1].pop())
            os.chmod(names[-1], 0o700, dir_fd=here)
            below = os.open(names[-1], flags, dir_fd=here)
            os.close(here)
            here = below
            remaining.append(_without_files(here))
        else:
            above = os.open("..", flags, dir_fd=here)
            os.close(here)
            here = above
            os.rmdir(names.pop(), dir_fd=here)
            remaining.pop()
    os.close(here)
    os.rmdir(folder)


def _without_files(folder: int) -> list[str]:
    """Remove what is not a folder; returns the names of the folders."""
    folders = []
    with os.scandir(folder) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=folder)
    return folders
