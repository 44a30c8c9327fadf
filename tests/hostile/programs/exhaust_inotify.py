"""Exhaust the user's inotify instances and watches.

Wall: seccomp.
"""

import ctypes
import json

scene = json.loads(input())
libc = ctypes.CDLL(None, use_errno=True)

if libc.inotify_init1(0) >= 0:
    print("reached")
