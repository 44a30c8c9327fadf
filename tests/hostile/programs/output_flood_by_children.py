"""Print without end from processes that outlive the program.

Wall: the output is limited, and the namespace killed.
"""

import json
import os

scene = json.loads(input())

for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        while True:
            os.write(1, b"x" * 65536)
