"""Leave a daemon, and zombies that count against the limit of the next run.

Stopped by: after each run the namespace is killed and reaped.
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
    try:
        if os.fork() == 0:
            os._exit(0)
    except OSError:
        print("reached the limit of another run")
    os._exit(0)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for sign in range(1, 32):
            with contextlib.suppress(OSError, ValueError):
                signal.signal(sign, signal.SIG_IGN)
        time.sleep(60)
with contextlib.suppress(OSError):
    while True:
        if os.fork() == 0:
            os._exit(0)
