"""Open /dev/mem, /dev/kmsg, disks, terminals and /dev/fuse.

Stopped by: /dev holds null, zero, full, random and urandom.
"""

import contextlib
import json

scene = json.loads(input())

for name in (
    "mem",
    "kmem",
    "port",
    "kmsg",
    "vda",
    "sda",
    "nvme0n1",
    "fuse",
    "tty",
    "ptmx",
    "console",
    "kvm",
    "net/tun",
):
    with contextlib.suppress(OSError):
        open(f"/dev/{name}", "rb").close()
        print("reached", name)
