"""Connect to the hypervisor by AF_VSOCK.

Wall: seccomp refuses sockets.
"""

import contextlib
import json
import socket

scene = json.loads(input())

with contextlib.suppress(OSError):
    socket.socket(40, socket.SOCK_STREAM)
    print("reached")
