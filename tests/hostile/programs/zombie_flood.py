"""Leave zombies that count against the next run.

Stopped by: the supervisor reaps before the next run.
"""

import contextlib
import json
import os

scene = json.loads(input())

if scene["again"]:
    if os.fork() == 0:
        os._exit(0)
    os.wait()
    os._exit(0)
with contextlib.suppress(OSError):
    while True:
        if os.fork() == 0:
            os._exit(0)
