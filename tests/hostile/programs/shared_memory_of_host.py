"""Attach the host's System V and POSIX shared memory.

Stopped by: an IPC namespace and a /dev of its own.
"""

import contextlib
import ctypes
import json
from multiprocessing import shared_memory

scene = json.loads(input())
libc = ctypes.CDLL(None, use_errno=True)

if libc.shmget(scene["shm"], 0, 0) >= 0:
    print("reached")
with contextlib.suppress(OSError):
    print(bytes(shared_memory.SharedMemory(scene["posix"]).buf or b""))
