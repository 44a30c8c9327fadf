"""Allocate more memory than the limit in one process.

Wall: RLIMIT_AS.
"""

import json

scene = json.loads(input())

x = bytearray(600 * 2**20)
print("reached", len(x))
