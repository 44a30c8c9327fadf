"""Write files without end.

Stopped by: the folder is a file system in memory with a size limit.
"""

import contextlib
import json

scene = json.loads(input())

total = 0
with contextlib.suppress(OSError):
    for i in range(10000):
        with open(f"file{i}", "wb") as file:
            total += file.write(b"x" * 2**20)
if total > 9 * 2**20:
    print("reached", total)
