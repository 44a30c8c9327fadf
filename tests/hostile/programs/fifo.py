"""Write to and read from a FIFO of the host.

Wall: the path is not in the root.
"""

import contextlib
import json
import os

scene = json.loads(input())

with contextlib.suppress(OSError):
    print(os.read(os.open(scene["fifo"], os.O_RDWR | os.O_NONBLOCK), 100))
    print("reached")
