"""Leave a folder without permissions and files with odd names.

Wall: the file system vanishes with the run.
"""

import contextlib
import json
import os

scene = json.loads(input())

if os.listdir("."):
    print("reached")
for name in ("-rf", "\n", "\udcff", "x" * 255):
    with contextlib.suppress(OSError):
        open(name, "w").close()
os.mkdir("locked")
os.chmod("locked", 0)
os.chmod(".", 0)
