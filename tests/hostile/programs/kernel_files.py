"""Open /dev/mem, /dev/kmsg, disks, terminals and /dev/fuse; write to /sys, /proc/sys and /proc/sysrq-trigger.

Stopped by: /dev holds null, zero, full, random and urandom; there is no /sys, and /proc is read-only.
"""

import contextlib

devices = ("mem", "kmem", "port", "kmsg", "vda", "sda", "nvme0n1", "fuse", "tty", "ptmx", "console", "kvm", "net/tun")

for name in devices:
    with contextlib.suppress(OSError):
        open(f"/dev/{name}", "rb").close()
        print("reached", name)
for path in ("/sys/power/state", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/self/oom_score_adj"):
    with contextlib.suppress(OSError):
        open(path, "w").write("0")
        print("reached", path)
