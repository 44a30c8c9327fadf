"""Write files without end, make files without end, and leave a file and nested folders for the next run.

Stopped by: the folder is a file system in memory with limits of size and inodes, which vanishes with the run.
"""

import contextlib
import json
import os

scene = json.loads(input())

folders = (".", "/tmp", "/var/tmp", "/dev/shm", "/box", "/dev", "/proc")
left = [os.path.join(folder, "left") for folder in folders]
if scene["again"] and (os.listdir(".") or any(map(os.path.exists, left))):
    print("reached the files of another run")
total = count = 0
with contextlib.suppress(OSError):
    for i in range(100):
        with open(f"file{i}", "wb", buffering=0) as file:
            total += file.write(b"x" * 2**20)
if total > 9 * 2**20:
    print("reached", total)
for name in os.listdir("."):
    os.remove(name)
with contextlib.suppress(OSError):
    while count < 3000:
        open(f"file{count}", "w").close()
        count += 1
if count > 2000:
    print("reached", count)
for name in os.listdir("."):
    os.remove(name)
for path in left:
    with contextlib.suppress(OSError):
        open(path, "w").write("x")
with contextlib.suppress(OSError):
    for _ in range(5000):
        os.mkdir("d")
        os.chdir("d")
