"""Hold deleted files that no folder shows.

Wall: they count against the size of the file system.
"""

import contextlib
import json
import os

scene = json.loads(input())

held = []
with contextlib.suppress(OSError):
    for _ in range(50):
        held.append(open("file", "wb", 0))
        held[-1].write(b"x" * 2**20)
        os.unlink("file")
if len(held) > 10:
    print("reached", len(held))
