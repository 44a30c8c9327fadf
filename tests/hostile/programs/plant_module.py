"""Plant a module that the next run imports.

Wall: each run has a new folder, and -I ignores it.
"""

import contextlib
import json
import os
import sys

scene = json.loads(input())

with contextlib.suppress(ImportError):
    import planted

    print("reached", planted)
for folder in (".", *sys.path):
    for name in ("planted.py", "sitecustomize.py", "usercustomize.py", "planted.pth"):
        with contextlib.suppress(OSError):
            open(os.path.join(folder, name), "w").write("print('reached')\n")
