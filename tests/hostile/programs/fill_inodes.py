"""Make files without end.

Stopped by: the folder has a limited number of inodes.
"""

import contextlib
import json

scene = json.loads(input())

count = 0
with contextlib.suppress(OSError):
    while count < 10**5:
        open(f"file{count}", "w").close()
        count += 1
if count > 2000:
    print("reached", count)
