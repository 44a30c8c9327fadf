"""Leave a daemon that answers the next run.

Stopped by: the namespace is killed after each run.
"""

import contextlib
import json
import os
import signal
import time

scene = json.loads(input())

if scene["again"]:
    others = [name for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
    if others:
        print("reached", others)
elif os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for sign in range(1, 32):
            with contextlib.suppress(OSError, ValueError):
                signal.signal(sign, signal.SIG_IGN)
        time.sleep(60)
