"""Become root, gain capabilities, mount, change the host's name.

Stopped by: no capabilities, and no_new_privs, with which no file gives any; namespaces of its own.
"""

import contextlib
import ctypes
import json
import os
from typing import Any

scene = json.loads(input())
libc = ctypes.CDLL(None, use_errno=True)

acts: list[Any] = [lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([0]), lambda: os.setresuid(0, 0, 0)]
for act in acts:
    with contextlib.suppress(OSError):
        act()
        print("reached")
status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
if any(int(status[name], 16) for name in ("CapPrm", "CapEff", "CapAmb")) or status["NoNewPrivs"] != "1":
    print("reached a capability")
for kind in (b"proc", b"tmpfs", b"overlay"):
    if libc.mount(b"none", b"/box", kind, 0, None) == 0:
        print("reached", kind)
if os.uname().nodename == scene["host"] or libc.sethostname(b"x", 1) == 0:
    print("reached the host's name")
