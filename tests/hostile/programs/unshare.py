"""Make namespaces with unshare.

Wall: seccomp.
"""

import ctypes
import json

scene = json.loads(input())
libc = ctypes.CDLL(None, use_errno=True)

for flag in (0x10000000, 0x20000, 0x20000000, 0x40000000, 0x2000000, 0x80):
    if libc.unshare(flag) == 0:
        print("reached", hex(flag))
