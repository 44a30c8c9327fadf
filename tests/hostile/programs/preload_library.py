"""Leave LD_PRELOAD, PYTHONSTARTUP and /etc/ld.so.preload for the next run.

Wall: the environment is empty, /etc read-only.
"""

import contextlib
import json
import os

scene = json.loads(input())

if {"LD_PRELOAD", "PYTHONPATH", "PYTHONSTARTUP"} & set(os.environ):
    print("reached")
os.environ["LD_PRELOAD"] = "/box/x.so"
with contextlib.suppress(OSError):
    open("/etc/ld.so.preload", "w").write("/box/x.so")
    print("reached")
