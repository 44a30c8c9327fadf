"""Change the priority and the processors of process 1.

Stopped by: seccomp.
"""

import contextlib
import json
import os
from typing import Any

scene = json.loads(input())

acts: list[Any] = [
    lambda: os.setpriority(os.PRIO_PROCESS, 1, 19),
    lambda: os.setpriority(os.PRIO_USER, os.getuid(), 19),
    lambda: os.sched_setaffinity(1, {0}),
    lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)),
]
for act in acts:
    with contextlib.suppress(OSError):
        act()
        print("reached")
