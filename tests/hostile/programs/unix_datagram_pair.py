"""Reconnect a datagram socket pair, which is allowed, to a socket of the host.

Stopped by: seccomp refuses connect; the path is not in the root.
"""

import contextlib
import json
import socket

scene = json.loads(input())

pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0]
for address in (scene["unix"] + ".dgram", scene["abstract"] + ".dgram"):
    with contextlib.suppress(OSError):
        pair.connect(address)
        print("reached")
    with contextlib.suppress(OSError):
        pair.sendto(b"reached", address)
        print("reached")
