"""Connect to servers of the host: TCP on the loopback, unix sockets by path and by abstract name.

Stopped by: a network namespace of its own; the path is not in the root.
"""

import contextlib
import json
import socket

scene = json.loads(input())

for family, address in (
    (socket.AF_INET, ("127.0.0.1", scene["port"])),
    (socket.AF_UNIX, scene["unix"]),
    (socket.AF_UNIX, scene["abstract"]),
):
    with contextlib.suppress(OSError):
        client = socket.socket(family)
        client.connect(address)
        print(client.recv(100))
