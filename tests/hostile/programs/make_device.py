"""Make a device node of the first disk or of memory.

Wall: no capabilities; the folder is mounted nodev.
"""

import contextlib
import json
import os

scene = json.loads(input())

for kind, major, minor in ((0o60000, 8, 0), (0o20000, 1, 1), (0o20000, 1, 3)):
    with contextlib.suppress(OSError):
        os.mknod("node", kind | 0o600, os.makedev(major, minor))
        open("node", "rb").read(1)
        print("reached")
