"""Hold 1.5 GB in System V shared memory.

Wall: seccomp refuses it.
"""

import ctypes
import json

scene = json.loads(input())
libc = ctypes.CDLL(None, use_errno=True)

held = 0
for _ in range(24):
    segment = libc.shmget(0, 64 * 2**20, 0o1600)
    address = libc.shmat(segment, None, 0) if segment >= 0 else -1
    held += address != -1
if held:
    print("reached", held)
