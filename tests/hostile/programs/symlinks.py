"""Read the host through symbolic and hard links.

Stopped by: they lead into the program's own root.
"""

import contextlib
import json
import os

scene = json.loads(input())

for target in (scene["task"], scene["private"], "/etc/shadow", "/proc/1/root" + scene["task"]):
    with contextlib.suppress(OSError):
        os.symlink(target, "link")
        print("reached", len(open("link").read()))
    with contextlib.suppress(OSError):
        os.unlink("link")
        os.link(target, "link")
        print("reached")
