"""Use the calls of another instruction set (x32), where the numbers differ.

Stopped by: seccomp.
"""

import ctypes
import json

scene = json.loads(input())
libc = ctypes.CDLL(None, use_errno=True)

if libc.syscall(0x40000000 + 39) > 0:
    print("reached")
