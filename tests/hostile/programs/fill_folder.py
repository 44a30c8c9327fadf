"""Write files without end, and leave a file for the next run.

Stopped by: the folder is a file system in memory with a limit of its size, which vanishes with the run.
"""

import contextlib
import json
import os

scene = json.loads(input())

left = [os.path.join(folder, "left") for folder in (".", "/tmp", "/var/tmp", "/dev/shm", "/dev", "/proc")]
if scene["again"] and (os.listdir(".") or any(map(os.path.exists, left))):
    print("reached the files of another run")
total = 0
with contextlib.suppress(OSError):
    for i in range(100):
        with open(f"file{i}", "wb", buffering=0) as file:
            total += file.write(b"x" * 2**20)
if total > 9 * 2**20:
    print("reached", total)
os.remove("file0")
for path in left:
    with contextlib.suppress(OSError):
        open(path, "w").write("x")
