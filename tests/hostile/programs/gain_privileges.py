"""Become root, gain capabilities, clear no_new_privs.

Stopped by: no capabilities, an empty bounding set, no_new_privs.
"""

import contextlib
import json
import os
from typing import Any

scene = json.loads(input())

acts: list[Any] = [lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([0]), lambda: os.setresuid(0, 0, 0)]
for act in acts:
    with contextlib.suppress(OSError):
        act()
        print("reached")
status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
if (
    any(int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"))
    or status["NoNewPrivs"] != "1"
):
    print("reached")
