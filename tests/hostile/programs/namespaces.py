"""Mount file systems, make namespaces, open files by handle, and read or change the host's name.

Stopped by: no capabilities; namespaces of its own; seccomp, which reads the flags of clone and refuses clone3.
"""

import ctypes
import json
import os

scene = json.loads(input())
libc = ctypes.CDLL(None, use_errno=True)


def number(x86_64: int, aarch64: int) -> int:
    return x86_64 if os.uname().machine == "x86_64" else aarch64


def started(pid: int) -> bool:
    if pid == 0:
        os._exit(0)
    return pid > 0


for kind in (b"proc", b"tmpfs", b"sysfs", b"devtmpfs", b"overlay"):
    if libc.mount(b"none", b"/box", kind, 0, None) == 0:
        print("reached", kind)
if libc.umount2(b"/box", 2) == 0 or libc.syscall(430, b"tmpfs", 0) >= 0:
    print("reached a mount")
arguments = (ctypes.c_uint64 * 8)(0x10000000, 0, 0, 0, 17, 0, 0, 0)
if started(libc.syscall(number(56, 220), 0x10000000 | 17, 0, 0, 0, 0)):
    print("reached a namespace by clone")
if started(libc.syscall(435, ctypes.byref(arguments), 64)):
    print("reached a namespace by clone3")
if libc.unshare(0x10000000) == 0:
    print("reached a namespace by unshare")
handle = (ctypes.c_uint32 * 8)(8, 1, 2, 0, 0, 0, 0, 0)
root = os.open("/usr/lib", os.O_RDONLY)
if libc.syscall(number(304, 265), root, ctypes.byref(handle), 0) >= 0:
    print("reached a file by handle")
if libc.syscall(number(303, 264), root, b"", ctypes.byref(handle), ctypes.byref(handle), 0x1000) >= 0:
    print("reached a handle")
if os.uname().nodename == scene["host"] or libc.sethostname(b"x", 1) == 0:
    print("reached the host's name")
