"""Supervises untrusted programs. It runs outside the package: it imports only `isolation` and the standard library.

A job is read as JSON from standard input, and one JSON object per line is written to standard output: `refused` if the
program cannot be isolated, else `started` and then one outcome per input. There are three levels of processes: the
script that creates the namespaces, its child, which is process 1 of the new process namespace, and the programs,
children of process 1. When process 1 ends, the kernel kills everything in the namespace.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import sys
import time

from . import isolation

WATCH = 0.05  # seconds between two looks at the memory of a program


class RefusedError(Exception):
    """A program could not be isolated."""


def reply(line: dict[str, object]) -> None:
    """Write one line to the caller."""
    data = json.dumps(line).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]


def start(text: str, job: isolation.Job) -> tuple[int, int]:
    """Start the program on one input; returns its process id and the read end of its standard output."""
    stdin = os.memfd_create("input", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(stdin, "wb", closefd=False) as file:
        file.write(text.encode("utf-8", "replace"))
    os.lseek(stdin, 0, os.SEEK_SET)
    fcntl.fcntl(stdin, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    read, write = os.pipe()
    problem, problem_write = os.pipe()  # closed by a successful exec
    pid = os.fork()
    if pid == 0:
        become_program(stdin, write, problem_write, job)
    for fd in (stdin, write, problem_write):
        os.close(fd)
    message = b""
    while data := os.read(problem, 4096):
        message += data
    os.close(problem)
    if message:
        os.close(read)
        os.waitpid(pid, 0)
        raise RefusedError(message.decode("utf-8", "replace"))
    return pid, read


def become_program(stdin: int, stdout: int, problem: int, job: isolation.Job) -> None:
    """In the new process: give up everything but the input and the output, and replace this script by the program."""
    try:
        os.setsid()
        uid, calls = job["uid"], bytes.fromhex(job["filter"])
        if job["backend"] != "limits":
            isolation.private_folder(job["file_mb"], isolation.NOBODY if uid is None else uid)
        if uid is not None:
            os.fchown(stdout, uid, uid)  # else the program could not open /dev/stdout
        null = os.open(os.devnull, os.O_WRONLY)
        for fd, target in ((stdin, 0), (stdout, 1), (null, 2), (problem, 3)):
            os.dup2(fd, target, inheritable=target < 3)
        os.closerange(4, 256)
        problem = 3
        isolation.drop_privileges(uid, job["executable"] if job["backend"] == "limits" else "")
        isolation.end_with_parent()
        isolation.limit(job)
        if calls:
            isolation.filter_calls(calls)
        os.execve(job["executable"], [job["executable"], "-I", "-c", job["code"]], {})
    except BaseException as error:
        os.write(problem, str(error).encode() or b"?")
    finally:
        os._exit(127)


def finish(pid: int, read: int, end: float, job: isolation.Job) -> dict[str, object]:
    """Read the program's output until it ends or exceeds the limit of its time, memory or output."""
    output = b""
    status = ""
    sources = [read, exited := os.pidfd_open(pid)]
    os.set_blocking(read, False)
    watch = time.monotonic() + WATCH
    while not status:
        now = time.monotonic()
        ready = select.select(sources, [], [], max(0.0, min(end, watch) - now))[0]
        data = b""
        if ready and read in sources:  # also when only its end was seen: it may have printed in between
            try:
                data = os.read(read, 65536)
                output += data
                if not data:  # its output is closed, but it may still run
                    sources.remove(read)
            except BlockingIOError:
                pass
        if len(output) > job["output_kb"] * 1024:
            status = "output"
        elif exited in ready and not data:
            status = "ended"
        elif time.monotonic() > end:
            status = "timeout"
        elif time.monotonic() > watch:
            watch = time.monotonic() + WATCH
            if too_much_memory(job["memory_mb"] * 2**20):
                status = "memory"
    os.close(exited)
    os.close(read)
    code = kill_all(pid)
    if status == "ended":
        status = "ok" if code == 0 else "error"
    return {"status": status, "stdout": output.decode("utf-8", "replace")}


def too_much_memory(limit: int) -> bool:
    """Whether all processes of the namespace together hold more than the limit; shared pages count once."""
    if os.getpid() != 1 or not os.path.exists("/proc/1"):
        return False
    others = [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]
    page = os.sysconf("SC_PAGE_SIZE")
    if sum(page * int(read_proc(name, "statm").split()[1]) for name in others) <= limit:
        return False
    rollups = [read_proc(name, "smaps_rollup").partition(b"\nPss:")[2].split() for name in others]
    return sum(1024 * int(words[0]) for words in rollups if words) > limit


def read_proc(process: str, name: str) -> bytes:
    """A file of /proc, or zeros if the process has ended."""
    try:
        with open(f"/proc/{process}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b"0 0"


def kill_all(pid: int) -> int:
    """Kill the program and all processes it started, and wait for them; returns the exit code of the program.

    A zombie would count against the process limit of the next program.
    """
    code = -1
    while True:
        try:
            for victim in [-1] if os.getpid() == 1 else children():
                os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            pass
        try:
            ended, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return code
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)


def children() -> list[int]:
    """The children of this process: as a subreaper it inherits the children of those that it kills."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(word) for word in file.read().split()]


def supervise(job: isolation.Job) -> None:
    """Run the program on each input, in an empty folder each time; what it does to itself is its own failure."""
    last = time.monotonic() + job["answer_seconds"]
    base = os.getcwd()
    reply({"started": True})  # before the program can end this process; a refusal after it still counts
    for number, text in enumerate(job["inputs"]):
        end = min(time.monotonic() + job["seconds"], last)
        try:
            if job["backend"] == "limits":
                isolation.host_folder(os.path.join(base, str(number)), job["uid"])
            pid, read = start(text, job)
        except (RefusedError, OSError) as error:
            if number == 0:
                raise RefusedError(str(error)) from None
            return  # the runs before are the reason
        try:
            outcome = finish(pid, read, end, job)
        except OSError:
            return
        reply(outcome)
        if time.monotonic() > last or (outcome["status"] != "ok" and job["stop_early"]):
            return


def isolated(job: isolation.Job) -> None:
    """Run the job as process 1 of new namespaces."""
    isolation.enter_namespaces(own_user=job["uid"] is None)
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    try:
        isolation.harden_supervisor()
        isolation.build_root(job)
        supervise(job)
    except (RefusedError, OSError) as error:
        reply({"refused": str(error)})
    finally:
        os._exit(0)


def main() -> None:
    """Read a job, run it, and write the replies."""
    job: isolation.Job = json.load(sys.stdin)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # the job's pipe is closed before any program starts
    os.close(null)
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # if the machine runs out of memory, this job is the one to end
    except OSError:
        pass
    try:
        if job["backend"] == "namespaces":
            isolated(job)
        elif job["backend"] == "bubblewrap":
            isolation.harden_supervisor()
            isolation.fresh_proc(isolation.MS_REMOUNT)
            supervise(job)
        else:
            isolation.harden_supervisor()
            isolation.libc.prctl(isolation.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            supervise(job)
    except (RefusedError, OSError) as error:
        reply({"refused": str(error)})
