"""Mount proc, tmpfs and the root, and unmount the folder.

Stopped by: no capabilities; seccomp.
"""

import ctypes
import json

scene = json.loads(input())
libc = ctypes.CDLL(None, use_errno=True)

for kind in (b"proc", b"tmpfs", b"sysfs", b"devtmpfs", b"overlay"):
    if libc.mount(b"none", b"/box", kind, 0, None) == 0:
        print("reached", kind)
if libc.umount2(b"/box", 2) == 0 or libc.syscall(430, b"tmpfs", 0) >= 0:
    print("reached")
