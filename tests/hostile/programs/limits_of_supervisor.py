"""Lower the limits of process 1 with prlimit.

Stopped by: seccomp allows prlimit on the program itself only.
"""

import contextlib
import json
import os
import resource

scene = json.loads(input())

for pid in (1, os.getppid()):
    for name in (resource.RLIMIT_AS, resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_CPU):
        with contextlib.suppress(OSError, ValueError):
            resource.prlimit(pid, name, (0, 0))
            print("reached")
