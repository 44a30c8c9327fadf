"""Set up io_uring, whose calls no filter sees.

Wall: seccomp.
"""

import ctypes
import json

scene = json.loads(input())
libc = ctypes.CDLL(None, use_errno=True)

parameters = (ctypes.c_uint32 * 30)()
if libc.syscall(425, 4, ctypes.byref(parameters)) >= 0:
    print("reached")
