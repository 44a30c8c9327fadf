"""Connect to a TCP server on the host's loopback, IPv4 and IPv6.

Stopped by: a network namespace of its own; seccomp refuses sockets.
"""

import contextlib
import json
import socket

scene = json.loads(input())

for host in ("127.0.0.1", "::1"):
    with contextlib.suppress(OSError):
        print(socket.create_connection((host, scene["port"]), timeout=1).recv(100))
