"""Read, trace and starve process 1: its command line, memory, limits, priority and processors.

Stopped by: /proc hides process 1, which is not dumpable; seccomp allows prlimit and affinity on the program only.
"""

import contextlib
import ctypes
import json
import os
import resource
from typing import Any

scene = json.loads(input())
libc = ctypes.CDLL(None, use_errno=True)


def number(x86_64: int, aarch64: int) -> int:
    return x86_64 if os.uname().machine == "x86_64" else aarch64


for pid in {1, os.getppid()}:
    with contextlib.suppress(OSError):
        print("reached", open(f"/proc/{pid}/cmdline").read())
    for name in ("mem", "maps", "pagemap", "auxv", "stack"):
        with contextlib.suppress(OSError):
            print("reached", name, len(open(f"/proc/{pid}/{name}", "rb").read(1)))
    for limit in (resource.RLIMIT_AS, resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_CPU):
        with contextlib.suppress(OSError, ValueError):
            resource.prlimit(pid, limit, resource.prlimit(pid, limit))
            print("reached a limit")
if libc.syscall(number(310, 270), 1, 0, 0, 0, 0, 0) == 0:
    print("reached process_vm_readv")
for request in (16, 0x4206):
    if libc.syscall(number(101, 117), request, 1, 0, 0) == 0:
        print("reached ptrace")
for fd in range(32):
    if libc.syscall(438, os.pidfd_open(1), fd, 0) >= 0:
        print("reached pidfd_getfd")
acts: list[Any] = [
    lambda: os.setpriority(os.PRIO_PROCESS, 1, 19),
    lambda: os.setpriority(os.PRIO_USER, os.getuid(), 19),
    lambda: os.sched_setaffinity(1, {0}),
    lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)),
]
for act in acts:
    with contextlib.suppress(OSError):
        act()
        print("reached the scheduler")
