"""Hold memory in shared anonymous mappings of several processes.

Wall: the supervisor counts the memory of all processes.
"""

import json
import mmap
import os
import time

scene = json.loads(input())

for _ in range(3):
    if os.fork() == 0:
        break
area = mmap.mmap(-1, 330 * 2**20)
for _ in range(330):
    area.write(b"x" * 2**20)
time.sleep(0.5)
print("reached")
