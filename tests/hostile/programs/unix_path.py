"""Connect to a unix socket by its path.

Stopped by: the path is not in the root; seccomp refuses sockets.
"""

import contextlib
import json
import socket

scene = json.loads(input())

with contextlib.suppress(OSError):
    client = socket.socket(socket.AF_UNIX)
    client.connect(scene["unix"])
    print(client.recv(100))
