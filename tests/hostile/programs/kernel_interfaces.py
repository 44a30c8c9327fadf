"""Use bpf, userfaultfd, perf_event_open, kexec, modules, key rings, inotify, io_uring, and the x32 instruction set.

Stopped by: seccomp; no capabilities.
"""

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)


def number(x86_64: int, aarch64: int) -> int:
    return x86_64 if os.uname().machine == "x86_64" else aarch64


buffer = (ctypes.c_uint64 * 16)()
for call in (number(321, 280), number(323, 282), number(298, 241), number(246, 104), number(313, 273), 447):
    if libc.syscall(call, 0, ctypes.byref(buffer), 0, 0, 0) >= 0:
        print("reached", call)
if libc.syscall(number(250, 219), 0, -3, 0) > 0 or libc.syscall(number(248, 217), b"user", b"x", b"y", 1, -3) > 0:
    print("reached a key ring")
if libc.inotify_init1(0) >= 0:
    print("reached inotify")
if libc.syscall(425, 4, ctypes.byref(buffer)) >= 0:
    print("reached io_uring")
if libc.syscall(0x40000000 + 39) > 0:
    print("reached a call of another instruction set")
