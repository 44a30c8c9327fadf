"""Read the memory of process 1 through /proc/1/mem, /proc/1/maps and process_vm_readv.

Stopped by: it is not dumpable and hidden; seccomp.
"""

import contextlib
import ctypes
import json
import os

scene = json.loads(input())
libc = ctypes.CDLL(None, use_errno=True)


def number(x86_64: int, aarch64: int) -> int:
    return x86_64 if os.uname().machine == "x86_64" else aarch64


for name in ("mem", "maps", "pagemap", "auxv", "stack"):
    with contextlib.suppress(OSError):
        print("reached", len(open(f"/proc/1/{name}", "rb").read(1)))
if libc.syscall(number(310, 270), 1, 0, 0, 0, 0, 0) == 0:
    print("reached")
