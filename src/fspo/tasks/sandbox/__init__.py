"""Runs an untrusted Python program in bubblewrap, or with limits only.

Each run is a bubblewrap of its own. Inside, `prelude` sets the limits and becomes the program. This process
reads the output, and ends a program that exceeds a limit. What is covered and what is not: docs/sandbox.md.
"""

import contextlib
import os
import secrets
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil
from multiprocessing.connection import wait
from pathlib import Path
from typing import BinaryIO, Literal

LONGEST = 100_000  # bytes of a program: it is passed as one argument, and Linux allows 128 KiB
GRACE = 60.0  # seconds for the first run to start, also on a busy machine
WATCH = 0.05  # seconds between two looks at the memory of a program
FOLDER = "/box"  # the working folder of an isolated program
Isolation = Literal["full", "limits"]
# A virtual environment hangs on the path of its interpreter, any other on the real path.
_PYTHON = sys.executable if sys.prefix != sys.base_prefix else os.path.realpath(sys.executable)
_Process = subprocess.Popen[bytes]
_PRELUDE = Path(__file__).with_name("prelude.py").read_text()


@dataclass(frozen=True)
class Limits:
    """What each run of a program may use."""

    seconds: float = 4.0  # of wall-clock time
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
    code = code.encode("utf-8", "replace").decode()
    if len(code.encode()) > LONGEST or "\0" in code:
        return [Outcome("error", "") for _ in inputs]
    outcomes: list[Outcome] = []
    last = time.monotonic() + GRACE
    for text in inputs:
        with _started(code, text, limits, isolation) as (process, output):
            startup = _startup_output(process, last)
            if b"started" not in startup:
                if not outcomes:
                    raise RuntimeError(_refusal(isolation, startup.decode("utf-8", "replace")))
                break  # the time of the answer is over, or the runs before are the reason
            if not outcomes:
                last = time.monotonic() + limits.answer_seconds
            outcomes.append(_finish(process, output, limits, min(time.monotonic() + limits.seconds, last)))
        if stop_early and outcomes[-1].status != "ok":
            return outcomes
        if time.monotonic() > last:
            break
    return outcomes + [Outcome("timeout", "")] * (len(inputs) - len(outcomes))


def _refusal(isolation: Isolation, startup: str) -> str:
    reason = startup.strip().rpartition("\n")[2][:200] or f"no program started within {GRACE:g} s"
    if isolation == "limits":
        return f"programs cannot be run on this machine ({reason}): use another task"
    return (
        f"programs cannot be isolated on this machine ({reason}): install bubblewrap and let it make namespaces, "
        f"or set isolation=limits to run them where they can read your files"
    )


# --- one run ---


@contextlib.contextmanager
def _started(code: str, text: str, limits: Limits, isolation: Isolation) -> Iterator[tuple[_Process, BinaryIO]]:
    """A program on one input, and its output; at the end it is killed with all that it started."""
    uid = spare_user()
    with contextlib.ExitStack() as stack:
        stdin = stack.enter_context(open(os.memfd_create("input"), "w+b"))
        stdin.write(text.encode("utf-8", "replace"))
        stdin.seek(0)
        if isolation == "full":
            user, folder = str(uid or ""), "/"
            command = bubblewrap(uid, limits)
        else:
            user, folder = "", stack.enter_context(_host_folder(uid))
            command = unprivileged(uid)
        own = 1 if isolation == "full" and uid is None else 0  # process 1 counts against the program's limit
        read, write = os.pipe()
        output = stack.enter_context(open(read, "rb"))
        with open(write, "wb") as stdout:
            if uid is not None:
                os.fchown(write, uid, uid)  # else the program could not open /dev/stdout
            process = subprocess.Popen(
                [*command, _PYTHON, "-I", "-c", _PRELUDE, user, *_resource_limits(limits, own), code],
                stdin=stdin,
                stdout=stdout,
                stderr=subprocess.PIPE,
                cwd=folder,
                env={},
                start_new_session=True,
            )
        with process:
            try:
                yield process, output
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _startup_output(process: _Process, until: float) -> bytes:
    """stderr until the start: `started`, or why it could not start."""
    assert process.stderr is not None
    errors, output = process.stderr.fileno(), b""
    while b"started" not in output and wait([errors], max(0.0, until - time.monotonic())):
        data = os.read(errors, 4096)
        if not data:
            break
        output += data
    return output


def _finish(process: _Process, output: BinaryIO, limits: Limits, end: float) -> Outcome:
    """Read the program's output until it ends or exceeds the limit of its time, memory or output."""
    read, exited = output.fileno(), os.pidfd_open(process.pid)
    os.set_blocking(read, False)
    sources = [read, exited]
    printed, status = b"", ""
    watch = time.monotonic() + WATCH
    while not status:
        ready = wait(sources, max(0.0, min(end, watch) - time.monotonic()))
        data = b""
        if ready and read in sources:  # also when only its end was seen: it may have printed in between
            with contextlib.suppress(BlockingIOError):
                data = os.read(read, 65536)
                printed += data
                if not data:  # its output is closed, but it may still run
                    sources.remove(read)
        if len(printed) > limits.output_kb * 1024:
            status = "output"
        elif exited in ready and not data:
            status = "ok" if process.wait() == 0 else "error"
        elif time.monotonic() > end:
            status = "timeout"
        elif time.monotonic() > watch:
            watch = time.monotonic() + WATCH
            if sum(map(_memory, _descendants(process.pid))) > limits.memory_mb * 2**20:
                status = "memory"
    os.close(exited)
    return Outcome(status, printed.decode("utf-8", "replace"))


def _descendants(pid: int) -> Iterator[int]:
    """A process and its descendants."""
    yield pid
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in path.read_text().split():
                yield from _descendants(int(child))


def _memory(pid: int) -> int:
    """Bytes that a process holds, of shared pages its share; 0 if it has ended."""
    with contextlib.suppress(OSError, IndexError):
        return 1024 * int(Path(f"/proc/{pid}/smaps_rollup").read_text().partition("\nPss:")[2].split()[0])
    return 0


@contextlib.contextmanager
def _host_folder(uid: int | None) -> Iterator[str]:
    """An empty folder of the host, where a program with limits only runs."""
    folder = tempfile.mkdtemp(prefix="fspo-")
    if uid is not None:
        os.chown(folder, uid, uid)
    try:
        yield folder
    finally:  # by a program that can remove folders nested to any depth
        subprocess.run(["rm", "-rf", folder], stderr=subprocess.DEVNULL, check=False)


def _resource_limits(limits: Limits, own_processes: int) -> list[str]:
    """The limits that the prelude sets, as NAME=VALUE."""
    values = {
        "CPU": ceil(limits.seconds) + 1,  # the wall clock comes first, unless several threads work
        "CORE": 1,  # 0 would still start a core-dump handler of the host
        "NOFILE": 64,
        "FSIZE": limits.file_mb * 2**20,
        "AS": limits.memory_mb * 2**20,
        "NPROC": limits.processes + own_processes,
    }
    return [f"RLIMIT_{name}={value}" for name, value in values.items()]


# --- how a program is started ---


def bubblewrap(uid: int | None, limits: Limits) -> list[str]:
    """The command that isolates a program."""
    program = shutil.which("bwrap")
    if program is None:
        raise RuntimeError(_refusal("full", "bubblewrap is not installed"))
    command = [program, "--die-with-parent", "--hostname", "sandbox", "--cap-drop", "ALL"]
    command += [f"--unshare-{name}" for name in ("pid", "net", "ipc", "uts", "cgroup-try")]
    if uid is None:
        command += ["--unshare-user", "--disable-userns", "--uid", "65534", "--gid", "65534"]
    else:  # what the prelude needs to become another user
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    for folder in sorted({folder for path in visible() for folder in Path(path).parents} - {Path("/")}):
        command += ["--dir", str(folder)]  # bubblewrap itself would make them readable to their owner only
    for path in visible():
        command += ["--ro-bind", path, path]
    command += ["--dev", "/dev", "--remount-ro", "/dev", "--proc", "/proc"]
    command += ["--perms", "1777", "--size", str(limits.file_mb * 2**20), "--tmpfs", FOLDER]
    return [*command, "--remount-ro", "/", "--chdir", FOLDER, "--"]


def unprivileged(uid: int | None) -> list[str]:
    """The command that starts a program with limits only: it ends with this process, and root becomes another user."""
    command = ["setpriv", "--no-new-privs", "--pdeathsig", "KILL"]
    if uid is not None:  # it may read any file, as it could otherwise not start an interpreter in root's own folder
        command += ["--reuid", str(uid), "--regid", str(uid), "--clear-groups"]
        command += [f"--{kind}=-all,+dac_read_search" for kind in ("inh-caps", "ambient-caps", "bounding-set")]
    return command


def spare_user() -> int | None:
    """A random user id for root to change to; None if this process is not root or has no such id."""
    if os.getuid() != 0:
        return None
    ranges = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    highest = max(int(first) + int(count) - 1 for first, _, count in ranges)
    if highest < 2000:
        return None
    return min(10**9 + 2**29, highest) - secrets.randbelow(min(2**29, highest // 2))


@cache
def visible() -> list[str]:
    """What a program sees of the host's files: the interpreter, the packages that it imports, and shared libraries."""
    prefixes = {sys.prefix, sys.base_prefix, sys.base_exec_prefix}
    paths = {
        _PYTHON,
        os.path.realpath(sys.executable),
        *(os.path.join(prefix, name) for prefix in prefixes for name in ("lib", "lib64", "pyvenv.cfg")),
        *site.getsitepackages(),
        *("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/nix/store", "/gnu/store"),
        *("/etc/ld.so.cache", "/usr/share/zoneinfo"),
    }
    paths |= {os.path.realpath(path) for path in paths}
    return sorted(path for path in paths if os.path.exists(path))
