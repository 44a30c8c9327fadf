"""Connect to an abstract unix socket.

Wall: a network namespace of its own; seccomp refuses sockets.
"""

import contextlib
import json
import socket

scene = json.loads(input())

with contextlib.suppress(OSError):
    client = socket.socket(socket.AF_UNIX)
    client.connect(scene["abstract"])
    print(client.recv(100))
