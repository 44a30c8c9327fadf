"""Read files of the host: by path, through symbolic and hard links, and through /proc/*/root and /proc/*/cwd.

Stopped by: the root holds only the interpreter and its libraries; process 1 is hidden and has left the host's root too.
"""

import contextlib
import json
import os

scene = json.loads(input())

for path in (scene["task"], scene["private"], scene["home"] + "/.ssh/id_ed25519", "/etc/shadow", "/etc/passwd"):
    with contextlib.suppress(OSError):
        print("reached", len(open(path).read()))
    with contextlib.suppress(OSError):
        os.symlink(path, "link")
        print("reached", len(open("link").read()))
    with contextlib.suppress(OSError):
        os.unlink("link")
        os.link(path, "link")
        print("reached a link to", path)
for pid in ("1", "self", str(os.getppid())):
    for name in ("root", "cwd"):
        for path in ("etc/shadow", "../../etc/shadow", scene["task"].lstrip("/")):
            with contextlib.suppress(OSError):
                print("reached", len(open(f"/proc/{pid}/{name}/{path}").read()))
if os.path.exists("/.old") or os.path.exists("/oldroot"):
    print("reached the old root")
