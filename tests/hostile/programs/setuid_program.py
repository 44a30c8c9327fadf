"""Run a setuid program.

Stopped by: there is none in the root; no_new_privs, nosuid.
"""

import contextlib
import json
import subprocess

scene = json.loads(input())

for name in (
    "/usr/bin/su",
    "/bin/su",
    "/usr/bin/sudo",
    "/usr/bin/passwd",
    "/bin/mount",
    "/usr/bin/newuidmap",
    "/bin/sh",
):
    with contextlib.suppress(OSError):
        subprocess.run([name, "--help"], capture_output=True)
        print("reached", name)
