"""Join the namespaces of another process with setns.

Wall: /proc shows no other process; seccomp.
"""

import contextlib
import ctypes
import json
import os

scene = json.loads(input())
libc = ctypes.CDLL(None, use_errno=True)

for pid in ("1", "self", str(os.getppid())):
    for name in ("mnt", "net", "pid", "user", "ipc", "uts"):
        with contextlib.suppress(OSError):
            if libc.setns(os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY), 0) == 0:
                print("reached", name)
