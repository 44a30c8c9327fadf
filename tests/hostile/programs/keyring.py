"""Use the kernel's key rings.

Wall: seccomp.
"""

import ctypes
import json
import os

scene = json.loads(input())
libc = ctypes.CDLL(None, use_errno=True)


def number(x86_64: int, aarch64: int) -> int:
    return x86_64 if os.uname().machine == "x86_64" else aarch64


if libc.syscall(number(250, 219), 0, -3, 0) > 0:
    print("reached")
if libc.syscall(number(248, 217), b"user", b"x", b"y", 1, -3) > 0:
    print("reached")
