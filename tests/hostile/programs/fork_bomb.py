"""Fork without end.

Stopped by: RLIMIT_NPROC in a user id of its own; the namespace is killed.
"""

import json
import os

scene = json.loads(input())

started = 0
while started < 10**6:
    try:
        if os.fork():
            started += 1
            if started > 64:
                print("reached")
    except OSError:
        pass
