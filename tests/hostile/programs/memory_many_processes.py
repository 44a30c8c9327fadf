"""Hold more than half of the limit in each of four processes.

Stopped by: the supervisor counts the memory of all processes.
"""

import json
import os
import time

scene = json.loads(input())

for _ in range(3):
    if os.fork() == 0:
        break
x = bytearray(b"x") * (330 * 2**20)
time.sleep(0.5)
print("reached")
