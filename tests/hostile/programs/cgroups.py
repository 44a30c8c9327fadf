"""Leave the cgroup or make one.

Wall: there is no /sys/fs/cgroup.
"""

import contextlib
import json
import os

scene = json.loads(input())

for folder in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/memory"):
    with contextlib.suppress(OSError):
        os.mkdir(f"{folder}/escape")
        print("reached", folder)
