"""Ignore all signals and run on.

Wall: SIGKILL after the time limit.
"""

import contextlib
import json
import signal

scene = json.loads(input())

for sign in range(1, 65):
    with contextlib.suppress(OSError, ValueError):
        signal.signal(sign, signal.SIG_IGN)
while True:
    pass
