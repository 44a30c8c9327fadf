"""Raise its own hard limits.

Wall: no capabilities.
"""

import contextlib
import json
import resource

scene = json.loads(input())

for name in (resource.RLIMIT_AS, resource.RLIMIT_NPROC, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE):
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(name, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print("reached")
