"""Read files of the host: by path, through links, and through /proc/*/root.

Stopped by: the root holds only the interpreter and its libraries; process 1 has left the host's root too.
"""

import contextlib
import json
import os

scene = json.loads(input())

for path in (scene["task"], scene["private"], "/etc/shadow", "/etc/passwd"):
    with contextlib.suppress(OSError):
        print("reached", len(open(path).read()))
    with contextlib.suppress(OSError):
        os.link(path, "link")
        print("reached a link to", path)
    for pid in ("1", "self"):
        for name in ("root", "cwd/../.."):
            with contextlib.suppress(OSError):
                print("reached", len(open(f"/proc/{pid}/{name}{path}").read()))
if os.path.exists("/oldroot"):
    print("reached the old root")
