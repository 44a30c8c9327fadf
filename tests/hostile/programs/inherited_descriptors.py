"""Read from and write to every inherited file descriptor.

Wall: only the input, the output and /dev/null are open.
"""

import contextlib
import json
import os

scene = json.loads(input())

for fd in range(3, 256):
    with contextlib.suppress(OSError):
        os.fstat(fd)
        print("reached", fd)
