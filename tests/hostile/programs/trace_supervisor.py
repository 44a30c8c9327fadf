"""Attach to process 1 with ptrace.

Stopped by: seccomp; another user or not dumpable.
"""

import ctypes
import json
import os

scene = json.loads(input())
libc = ctypes.CDLL(None, use_errno=True)


def number(x86_64: int, aarch64: int) -> int:
    return x86_64 if os.uname().machine == "x86_64" else aarch64


for request in (16, 0x4206):
    if libc.syscall(number(101, 117), request, 1, 0, 0) == 0:
        print("reached")
