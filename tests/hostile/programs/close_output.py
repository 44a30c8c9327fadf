"""Close its input and output and sleep.

Wall: the time limit is the supervisor's.
"""

import json
import os
import time

scene = json.loads(input())

for fd in (0, 1, 2):
    os.close(fd)
time.sleep(60)
