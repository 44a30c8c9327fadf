"""Write to /sys, /proc/sys and /proc/sysrq-trigger.

Stopped by: there is no /sys, and /proc is read-only.
"""

import contextlib
import json

scene = json.loads(input())

for path in ("/sys/power/state", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/self/oom_score_adj"):
    with contextlib.suppress(OSError):
        open(path, "w").write("0")
        print("reached", path)
