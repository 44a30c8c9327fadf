"""Open UDP, raw, packet and netlink sockets.

Wall: seccomp refuses sockets.
"""

import contextlib
import json
import socket

scene = json.loads(input())

for family, kind in ((2, 2), (10, 2), (2, 3), (17, 3), (16, 3), (38, 5), (31, 3), (29, 3)):
    with contextlib.suppress(OSError):
        socket.socket(family, kind)
        print("reached", family)
