"""Open /dev/mem, /dev/kmsg, disks, the terminal and /dev/fuse; write to /sys, /proc/sys and /proc/sysrq-trigger.

Stopped by: a /dev of its own; there is no /sys, and these files of /proc belong to root or are read-only.
"""

import contextlib

devices = ("mem", "kmem", "port", "kmsg", "vda", "sda", "nvme0n1", "fuse", "tty", "console", "kvm", "net/tun")

for name in devices:
    with contextlib.suppress(OSError):
        open(f"/dev/{name}", "rb").close()
        print("reached", name)
for path in ("/sys/power/state", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"):
    with contextlib.suppress(OSError):
        open(path, "w").write("0")
        print("reached", path)
