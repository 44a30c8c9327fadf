"""Leave the root with chroot and relative paths.

Wall: no capabilities; seccomp; the host is not mounted.
"""

import contextlib
import json
import os

scene = json.loads(input())

with contextlib.suppress(OSError):
    os.mkdir("inner")
    os.chroot("inner")
    print("reached")
os.chdir("/")
for _ in range(50):
    os.chdir("..")
if os.path.exists("etc/shadow") or os.path.exists(scene["folder"].lstrip("/")):
    print("reached")
