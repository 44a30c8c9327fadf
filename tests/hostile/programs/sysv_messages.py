"""Make message queues and semaphores that outlive the run.

Wall: seccomp refuses them.
"""

import ctypes
import json

scene = json.loads(input())
libc = ctypes.CDLL(None, use_errno=True)

if libc.msgget(1, 0o1600) >= 0 or libc.semget(1, 1, 0o1600) >= 0:
    print("reached")
