"""Read and change the host's name.

Stopped by: a UTS namespace of its own; seccomp.
"""

import ctypes
import json
import os

scene = json.loads(input())
libc = ctypes.CDLL(None, use_errno=True)

if os.uname().nodename == scene["host"] or libc.sethostname(b"x", 1) == 0:
    print("reached")
