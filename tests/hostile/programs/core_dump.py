"""Dump core to a file, or to the host's core-dump handler, which runs as root.

Stopped by: RLIMIT_CORE is 1, which stops both; seccomp keeps it there.
"""

import contextlib
import ctypes
import os
import resource

libc = ctypes.CDLL(None, use_errno=True)

for value in (0, 2**20):
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (value, value))
        print("reached")
if libc.setrlimit(resource.RLIMIT_CORE, (ctypes.c_uint64 * 2)(0, 0)) == 0:
    print("reached")
os.abort()
