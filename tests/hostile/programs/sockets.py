"""Connect to servers of the host: TCP on the loopback, unix sockets by path, and a reconnected datagram pair.

Stopped by: a network namespace of its own; the path is not in the root; seccomp refuses sockets and connect.
"""

import contextlib
import json
import socket

scene = json.loads(input())

for host in ("127.0.0.1", "::1"):
    with contextlib.suppress(OSError):
        print(socket.create_connection((host, scene["port"]), timeout=1).recv(100))
for address in (scene["unix"], scene["abstract"]):
    with contextlib.suppress(OSError):
        client = socket.socket(socket.AF_UNIX)
        client.connect(address)
        print(client.recv(100))
with contextlib.suppress(OSError):
    socket.socket(socket.AF_VSOCK)
    print("reached a vsock")
pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0]
for address in (scene["unix"] + ".dgram", scene["abstract"] + ".dgram"):
    with contextlib.suppress(OSError):
        pair.connect(address)
        print("reached a datagram socket")
    with contextlib.suppress(OSError):
        pair.sendto(b"reached", address)
        print("reached a datagram socket")
