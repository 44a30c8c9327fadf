"""Open host files by handle.

Stopped by: no capabilities; seccomp.
"""

import ctypes
import json
import os

scene = json.loads(input())
libc = ctypes.CDLL(None, use_errno=True)


def number(x86_64: int, aarch64: int) -> int:
    return x86_64 if os.uname().machine == "x86_64" else aarch64


handle = (ctypes.c_uint32 * 8)(8, 1, 2, 0, 0, 0, 0, 0)
root = os.open("/usr/lib", os.O_RDONLY)
if libc.syscall(number(304, 265), root, ctypes.byref(handle), 0) >= 0:
    print("reached")
if libc.syscall(number(303, 264), root, b"", ctypes.byref(handle), ctypes.byref(handle), 0x1000) >= 0:
    print("reached")
