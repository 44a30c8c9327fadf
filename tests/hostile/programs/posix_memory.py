"""Hold 1.5 GB in POSIX shared memory and message queues.

Wall: there is no /dev/shm; seccomp.
"""

import contextlib
import ctypes
import json
import os
from multiprocessing import shared_memory

scene = json.loads(input())
libc = ctypes.CDLL(None, use_errno=True)

with contextlib.suppress(OSError):
    shared_memory.SharedMemory(create=True, size=1 << 20)
    print("reached")
if libc.mq_open(b"/queue", os.O_CREAT | os.O_RDWR, 0o600, None) >= 0:
    print("reached")
