"""Read `/proc/*/environ` of process 1, the parent and all others.

Wall: /proc hides process 1, and others are not in it.
"""

import contextlib
import json
import os

scene = json.loads(input())

for name in {"1", str(os.getppid()), *os.listdir("/proc")}:
    if name.isdigit() and int(name) != os.getpid():
        with contextlib.suppress(OSError):
            print("reached", open(f"/proc/{name}/environ").read())
