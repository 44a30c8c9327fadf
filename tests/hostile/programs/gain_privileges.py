"""Become root, gain capabilities, clear no_new_privs, run a setuid program.

Stopped by: no capabilities, an empty bounding set, no_new_privs; no setuid program in the root, nosuid.
"""

import contextlib
import os
import subprocess
from typing import Any

acts: list[Any] = [lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([0]), lambda: os.setresuid(0, 0, 0)]
for act in acts:
    with contextlib.suppress(OSError):
        act()
        print("reached")
status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
capabilities = [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")]
if any(capabilities) or status["NoNewPrivs"] != "1":
    print("reached")
for name in ("/usr/bin/su", "/bin/su", "/usr/bin/sudo", "/usr/bin/passwd", "/bin/mount", "/usr/bin/newuidmap"):
    with contextlib.suppress(OSError):
        subprocess.run([name, "--help"], capture_output=True)
        print("reached", name)
