"""Fork again and again.

Stopped by: RLIMIT_NPROC, in a user id or user namespace of its own.
"""

import contextlib
import os

started = 0
for _ in range(2000):
    with contextlib.suppress(OSError):
        if os.fork():
            started += 1
            if started > 64:
                print("reached")
