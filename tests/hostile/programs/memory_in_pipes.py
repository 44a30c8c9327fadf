"""Hold memory in the buffers of pipes.

Stopped by: RLIMIT_NOFILE, and the kernel's limit per user.
"""

import contextlib
import fcntl
import json
import os

scene = json.loads(input())

total = 0
with contextlib.suppress(OSError):
    while True:
        read, write = os.pipe()
        os.set_blocking(write, False)
        with contextlib.suppress(OSError):
            fcntl.fcntl(write, 1031, 2**20)
        with contextlib.suppress(BlockingIOError):
            while True:
                total += os.write(write, b"x" * 65536)
if total > 2**26:
    print("reached", total)
