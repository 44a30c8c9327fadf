"""Runs untrusted programs. `launch` starts it as a script outside the package: it imports the standard library only.

A job is read as JSON from standard input; one JSON object is written to standard output. There are three levels of
processes: this script creates the namespaces, its child is process 1 of the new process namespace, and each program is
a child of process 1. When process 1 ends, the kernel kills everything in the namespace.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import shutil
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would add 3 ms to the scoring of every answer
    from typing import Any, TypedDict

    class Job(TypedDict):
        """A program, its inputs, and the limits of each run."""

        code: str
        inputs: list[str]
        allow_network: bool
        stop_early: bool
        seconds: float
        memory_mb: int
        processes: int
        file_mb: int
        output_kb: int


libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER = 0x20000, 0x8000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV = 2, 4
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE = 442, -100, 0x8000
MOUNT_ATTR_RDONLY, MS_PRIVATE = 1, 1 << 18
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 1, 4, 8, 38, 47
CAP_DAC_READ_SEARCH = 2


def checked(result: int, what: str) -> None:
    """Raise the error of a C function whose result is not 0."""
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def enter_namespaces(network: bool) -> None:
    """New process, mount and IPC namespaces, and a network namespace without a connection unless `network` is set."""
    uid, gid = os.getuid(), os.getgid()
    flags = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC
    flags |= 0 if network else CLONE_NEWNET
    flags |= CLONE_NEWUSER if uid else 0
    checked(libc.unshare(flags), "unshare")
    if uid:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)


def protect_files(folder: str, size_mb: int, uid: int) -> None:
    """Make all mounted files read-only, and mount an empty private file system in memory on `folder`."""
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY, 0, MS_PRIVATE, 0)
    checked(
        libc.syscall(MOUNT_SETATTR, AT_FDCWD, b"/", AT_RECURSIVE, ctypes.byref(attributes), 32),
        "mount_setattr",
    )
    options = f"size={size_mb}m,nr_inodes=1000,mode=700,uid={uid}".encode()
    flags = MS_NOSUID | MS_NODEV
    checked(libc.mount(b"tmpfs", folder.encode(), b"tmpfs", flags, options), "mount")
    if os.path.isdir("/run"):  # hides the sockets of other programs
        checked(libc.mount(b"tmpfs", b"/run", b"tmpfs", flags, b"size=4k"), "mount")
    os.chdir(folder)


def drop_root(uid: int) -> None:
    """Change from root to a user without files, to whom the limits apply.

    The capability to read any file is kept only if Python could not start without it.
    """
    libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(uid, uid, uid)
    readable = os.access(sys.executable, os.X_OK) and os.access(os.__file__, os.R_OK)
    for capability in [0] if readable else [1 << CAP_DAC_READ_SEARCH, 0]:
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        data = (ctypes.c_uint32 * 6)(capability, capability, capability, 0, 0, 0)
        if libc.capset(ctypes.byref(header), ctypes.byref(data)) == 0:
            break
    if capability:
        libc.prctl(PR_CAP_AMBIENT, 2, CAP_DAC_READ_SEARCH, 0, 0)


def start(text: str, job: Job) -> tuple[int, int]:
    """Start the program on one input; returns its process id and the read end of its standard output."""
    stdin = os.memfd_create("input")
    os.write(stdin, text.encode("utf-8", "replace"))
    os.lseek(stdin, 0, os.SEEK_SET)
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(stdin)
        os.close(write)
        return pid, read
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_WRONLY)
        for fd, target in ((stdin, 0), (write, 1), (null, 2)):
            os.dup2(fd, target)
        os.closerange(3, 256)
        cpu = max(1, int(job["seconds"] + 0.999))
        memory, files = job["memory_mb"] * 2**20, job["file_mb"] * 2**20
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        resource.setrlimit(resource.RLIMIT_FSIZE, (files, files))
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_NPROC, (job["processes"], job["processes"]))
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        os.execve(sys.executable, [sys.executable, "-I", "-c", job["code"]], {})
    finally:
        os._exit(127)


def finish(pid: int, read: int, job: Job) -> dict[str, str]:
    """Read the program's output until it ends or exceeds the limit of its time or output."""
    end = time.monotonic() + job["seconds"]
    output = b""
    status = ""
    os.set_blocking(read, False)
    exited = os.pidfd_open(pid)
    while not status:
        ready = select.select([read, exited], [], [], max(0.0, end - time.monotonic()))[0]
        data = b""
        if read in ready:
            data = os.read(read, 65536)
            output += data
        if len(output) > job["output_kb"] * 1024:
            status = "output"
        elif exited in ready and not data:
            status = "ended"
        elif read in ready and not data:  # its output is closed but it still runs
            ready = select.select([exited], [], [], max(0.0, end - time.monotonic()))[0]
            status = "ended" if ready else "timeout"
        elif not ready or time.monotonic() > end:
            status = "timeout"
    os.close(exited)
    os.close(read)
    kill_all(pid)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status == "ended":
        status = "ok" if code == 0 else "error"
    return {"status": status, "stdout": output.decode("utf-8", "replace")}


def kill_all(pid: int) -> None:
    """Kill the program and all processes it started: the whole namespace, or without one its process group."""
    try:
        if os.getpid() == 1:
            os.kill(-1, signal.SIGKILL)
        else:
            os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def reap() -> None:
    """Wait for all killed processes: a zombie still counts against the process limit of the next program."""
    try:
        while os.waitpid(-1, 0 if os.getpid() == 1 else os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def run(job: Job) -> dict[str, Any]:
    """Run the program on each input, in a new empty folder each time."""
    outcomes = []
    base = os.getcwd()
    for number, text in enumerate(job["inputs"]):
        folder = os.path.join(base, str(number))
        try:
            os.mkdir(folder)
        except OSError:  # the run before left a full disk that could not be cleared
            outcomes.append({"status": "error", "stdout": ""})
            continue
        os.chdir(folder)
        pid, read = start(text, job)
        outcomes.append(finish(pid, read, job))
        reap()
        os.chdir(base)
        shutil.rmtree(folder, ignore_errors=True)
        if outcomes[-1]["status"] != "ok" and job["stop_early"]:
            break
    return {"outcomes": outcomes}


def isolated(job: Job) -> dict[str, Any]:
    """Run the job as process 1 of new namespaces; returns the reply."""
    enter_namespaces(job["allow_network"])
    uid = os.getuid() or 10**9 + os.getpid()  # a new id: only this job's processes count against the limit
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            protect_files(os.getcwd(), job["file_mb"], uid)
            if os.getuid() == 0:
                drop_root(uid)
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # a later change of user would undo it
            libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # no program may trace this process and forge its reply
            reply = run(job)
        except OSError as error:
            reply = {"refused": str(error)}
        with open(write, "w") as file:
            file.write(json.dumps(reply))
        os._exit(0)
    os.close(write)
    with open(read) as file:
        text = file.read()
    os.waitpid(pid, 0)
    if not text:
        return {"refused": "process 1 of the sandbox ended"}
    answer: dict[str, Any] = json.loads(text)
    return answer


def main() -> None:
    """Read a job, run it, print the reply; without namespaces it runs only if the network is allowed."""
    job: Job = json.load(sys.stdin)
    try:
        reply = isolated(job)
    except OSError as error:
        reply = {"refused": str(error)}
    if "refused" in reply and job["allow_network"]:
        if os.getuid() == 0:
            uid = 10**9 + os.getpid()
            os.chown(".", uid, 65534)
            drop_root(uid)
        reply = run(job)
    print(json.dumps(reply))


main()
