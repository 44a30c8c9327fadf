"""Hold memory in memfd files that no limit counts.

Stopped by: seccomp refuses memfd_create; the input is sealed.
"""

import contextlib
import json
import os

scene = json.loads(input())

with contextlib.suppress(OSError):
    os.memfd_create("x")
    print("reached")
for act in (lambda: os.write(0, b"x" * 2**20), lambda: os.ftruncate(0, 2**30)):
    with contextlib.suppress(OSError):
        act()
        print("reached")
