"""Make namespaces with clone and clone3.

Stopped by: seccomp reads the flags of clone and refuses clone3.
"""

import ctypes
import json
import os

scene = json.loads(input())
libc = ctypes.CDLL(None, use_errno=True)


def number(x86_64: int, aarch64: int) -> int:
    return x86_64 if os.uname().machine == "x86_64" else aarch64


pid = libc.syscall(number(56, 220), 0x10000000 | 17, 0, 0, 0, 0)
if pid == 0:
    os._exit(0)
if pid > 0:
    print("reached")
arguments = (ctypes.c_uint64 * 8)(0x10000000, 0, 0, 0, 17, 0, 0, 0)
pid = libc.syscall(435, ctypes.byref(arguments), 64)
if pid == 0:
    os._exit(0)
if pid > 0:
    print("reached")
