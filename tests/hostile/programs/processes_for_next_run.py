"""Leave a daemon that ignores signals, and processes up to the limit.

Stopped by: each run has a process namespace of its own, which ends with it.
"""

import contextlib
import json
import os
import signal
import time

scene = json.loads(input())

if scene["again"]:
    others = [name for name in os.listdir("/proc") if name.isdigit() and int(name) not in (1, os.getpid())]
    if others:
        print("reached", others)
    try:
        if os.fork() == 0:
            os._exit(0)
    except OSError:
        print("reached the limit of another run")
    os._exit(0)
with contextlib.suppress(OSError):
    while True:
        if os.fork() == 0:
            os.setsid()
            for sign in range(1, 32):
                with contextlib.suppress(OSError, ValueError):
                    signal.signal(sign, signal.SIG_IGN)
            time.sleep(60)
