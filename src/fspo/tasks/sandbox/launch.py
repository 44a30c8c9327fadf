"""Runs an untrusted Python program with its own root, namespaces, limits and a filter of system calls.

The supervisor of the program is started in bubblewrap, in our own namespaces, or with limits only.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import site
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from fspo.tasks.sandbox.syscall_filter import seccomp_program

LONGEST = 100_000  # bytes of a program: it is passed as one argument, and Linux allows 128 KiB
GRACE = 60.0  # seconds to start, also on a busy machine
Isolation = Literal["full", "limits"]
ISOLATED: tuple[str, ...] = ("bubblewrap", "namespaces")
_SUPERVISOR = "import sys; sys.path.append(sys.argv[1]); from sandbox.supervisor import main; main()"
_NOBODY = "65534"
DEVICE_LINKS = (("/dev/fd", "/proc/self/fd"), ("/dev/stdin", "fd/0"), ("/dev/stdout", "fd/1"), ("/dev/stderr", "fd/2"))
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_LIBRARIES = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/nix/store", "/gnu/store")
_DATA = ("/etc/ld.so.cache", "/usr/share/zoneinfo")


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
    """A back end does not work on this machine."""


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
    for backend in ISOLATED if isolation == "full" else ("limits",):
        if backend in _refusals:
            continue
        try:
            return _outcomes(_replies(backend, job), job)
        except _RefusedError as refused:
            _refusals[backend] = str(refused)
    reasons = "; ".join(f"{backend}: {reason}" for backend, reason in _refusals.items())
    _refusals.clear()  # a refusal may pass, as when the machine was short of memory
    if isolation == "limits":
        raise RuntimeError(f"programs cannot be run on this machine ({reasons}): use another task")
    raise RuntimeError(
        f"programs cannot be isolated on this machine ({reasons}): install bubblewrap or allow user namespaces, "
        f"or set isolation=limits to run them where they can read your files"
    )


def _replies(backend: str, job: dict[str, Any]) -> list[dict[str, Any]]:
    """Run the job; returns the lines that the supervisor wrote before it ended or its time was over."""
    tree, uid = python_tree(), spare_user()
    start = command(backend, tree, uid)
    try:
        program = seccomp_program().hex()
    except RuntimeError as error:
        if backend != "limits":
            raise _RefusedError(str(error)) from None
        program = ""
    files = {"executable": tree.executable, "mounts": tree.mounts, "links": (*tree.links, *DEVICE_LINKS)}
    job = {**job, **files, "backend": backend, "uid": uid, "devices": DEVICES, "filter": program}
    # Killing a program that exceeds its time takes up to a second.
    runs = len(job["inputs"])
    longest = GRACE + runs + min(job["answer_seconds"], runs * job["seconds"])
    with _folder(backend) as folder:
        process = subprocess.Popen(
            start,
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
    outcomes = [Outcome(**line) for line in lines if "status" in line]
    if job["stop_early"] and any(outcome.status != "ok" for outcome in outcomes):
        return outcomes
    return outcomes + [Outcome("timeout", "")] * (len(job["inputs"]) - len(outcomes))


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
    finally:  # by programs that can remove folders nested to any depth
        subprocess.run(["chmod", "-R", "u+rwx", folder], stderr=subprocess.DEVNULL, check=False)
        subprocess.run(["rm", "-rf", folder], stderr=subprocess.DEVNULL, check=False)


# --- how the supervisor is started ---


def supervisor(executable: str) -> list[str]:
    """The command of the supervisor, which imports this folder as the package `sandbox`, without the one above it."""
    return [executable, "-I", "-S", "-c", _SUPERVISOR, str(Path(__file__).resolve().parents[1])]


def command(backend: str, tree: "FileTree", uid: int | None) -> list[str]:
    """The command that reads a job."""
    if backend != "bubblewrap":
        return supervisor(sys.executable)
    program = shutil.which("bwrap")
    if program is None:
        raise _RefusedError("not installed")
    user = ["--unshare-user", "--uid", _NOBODY, "--gid", _NOBODY] if uid is None else []
    spaces = [f"--unshare-{name}" for name in ("pid", "net", "ipc", "uts", "cgroup-try")]
    # The supervisor needs its capabilities to give each program a folder of its own; programs have none.
    own = ["--cap-add", "ALL", "--as-pid-1", "--die-with-parent", "--hostname", "sandbox"]
    mounts = (*tree.mounts, str(Path(__file__).resolve().parent))
    links = (*tree.links, *DEVICE_LINKS)
    parents = {parent for path in (*mounts, *DEVICES, *dict(links)) for parent in Path(path).parents}
    files: list[str] = []
    for folder in sorted(parents - {Path("/")}):  # bubblewrap itself would make them readable to their owner only
        files += ["--dir", str(folder)]
    for path in mounts:
        files += ["--ro-bind", path, path]
    for path in DEVICES:
        files += ["--dev-bind", path, path]
    for path, target in links:
        files += ["--symlink", target, path]
    files += ["--proc", "/proc", "--dir", "/box", "--remount-ro", "/", "--chdir", "/"]
    return [program, *user, *spaces, *own, *files, "--", *supervisor(tree.executable)]


def spare_user() -> int | None:
    """A random user id for root to change to; None if this process is not root or has no such id."""
    if os.getuid() != 0:
        return None
    highest = 0
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, count = map(int, line.split())
        highest = max(highest, first + count - 1)
    if highest < 2000:
        return None
    return min(10**9 + 2**29, highest) - secrets.randbelow(min(2**29, highest // 2))


# --- what a program sees of the file system: the interpreter and its libraries, at their own paths ---


@dataclass(frozen=True)
class FileTree:
    """Real paths to mount read-only at the same place, and symbolic links (path, target) that lead to them."""

    executable: str
    mounts: tuple[str, ...]
    links: tuple[tuple[str, str], ...]


@cache
def python_tree() -> FileTree:
    """The interpreter and the packages that it can import: each path where it really is, and links that lead to it."""
    prefixes = {sys.base_prefix, sys.base_exec_prefix}
    paths = {
        sys.executable,
        os.path.realpath(sys.executable),
        *(os.path.join(prefix, name) for prefix in prefixes for name in ("lib", "lib64")),
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib")),
        *site.getsitepackages(),
        *_LIBRARIES,
        *_DATA,
    }
    if sys.prefix != sys.base_prefix:
        paths.add(os.path.join(sys.prefix, "pyvenv.cfg"))
    paths = {os.path.abspath(path) for path in paths if os.path.exists(path)}
    mounts: list[str] = []
    for path in sorted({os.path.realpath(path) for path in paths}):
        if not _within(path, mounts):
            mounts.append(path)
    links: list[tuple[str, str]] = []
    for path in sorted(paths):
        if os.path.realpath(path) != path and not _within(path, [*mounts, *(link for link, _ in links)]):
            links.append((path, os.path.realpath(path)))
    return FileTree(sys.executable, tuple(mounts), tuple(links))


def _within(path: str, folders: list[str]) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in folders)
