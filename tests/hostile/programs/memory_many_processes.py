"""Hold more than half of the limit in each of four processes.

Stopped by: the sandbox counts the memory of all processes.
"""

import os
import time

for _ in range(3):
    if os.fork() == 0:
        break
x = bytearray(b"x") * (330 * 2**20)
time.sleep(30)
print("reached")
