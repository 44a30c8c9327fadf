"""Loop without end, in every test.

Wall: each run and the answer as a whole have a time limit.
"""

import json
import time

scene = json.loads(input())

while True:
    time.sleep(0.01)
