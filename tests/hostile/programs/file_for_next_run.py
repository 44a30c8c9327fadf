"""Leave the input in a file for the next run.

Stopped by: each run has a new file system.
"""

import contextlib
import json
import os

scene = json.loads(input())

folders = (".", "/tmp", "/var/tmp", "/dev/shm", "/box", "/dev", "/proc")
for folder in folders:
    path = os.path.join(folder, "left")
    if scene["again"] and os.path.exists(path):
        print("reached", path)
for folder in folders:
    with contextlib.suppress(OSError):
        open(os.path.join(folder, "left"), "w").write("x")
