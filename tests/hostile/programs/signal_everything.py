"""Send SIGKILL, SIGSTOP and SIGINT to process 1, to the parent and to everything.

Stopped by: a process namespace of its own.
"""

import contextlib
import json
import os
import signal

scene = json.loads(input())

for sign in (signal.SIGINT, signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL, signal.SIGRTMIN):
    for pid in (1, os.getppid(), *scene["victims"]):
        with contextlib.suppress(OSError):
            os.kill(pid, sign)
with contextlib.suppress(OSError):
    os.kill(-1, signal.SIGKILL)
