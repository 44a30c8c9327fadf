"""Pin memory outside of every limit: pages in pipes by vmsplice, splice and tee, locked pages, larger pipes.

Stopped by: seccomp; RLIMIT_MEMLOCK is 0.
"""

import contextlib
import ctypes
import fcntl
import json
import mmap
import os

scene = json.loads(input())
libc = ctypes.CDLL(None, use_errno=True)

read, write = os.pipe()
memory = mmap.mmap(-1, 2**21)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
vector = (ctypes.c_size_t * 2)(address, 4096)
if libc.vmsplice(write, ctypes.byref(vector), 1, 0) > 0:
    print("reached vmsplice")
with open(json.__file__, "rb") as file:
    if libc.splice(file.fileno(), None, write, None, 4096, 0) > 0:
        print("reached splice")
if libc.mlock(ctypes.c_void_p(address), 2**21) == 0:
    print("reached mlock")
with contextlib.suppress(OSError):
    fcntl.fcntl(write, 1031, 2**20)
    print("reached a larger pipe")
