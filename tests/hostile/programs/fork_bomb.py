"""Fork again and again.

Stopped by: RLIMIT_NPROC in a user id of its own; the namespace is killed.
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
