"""Leave thousands of nested folders that cannot be deleted.

Stopped by: the file system vanishes with the run.
"""

import contextlib
import json
import os

scene = json.loads(input())

with contextlib.suppress(OSError):
    for _ in range(5000):
        os.mkdir("d")
        os.chdir("d")
if scene["again"] and os.getcwd().count("/d") == 0:
    print("reached")
