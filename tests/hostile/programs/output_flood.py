"""Print without end.

Wall: the output is limited, and the program killed.
"""

import json
import sys

scene = json.loads(input())

while True:
    sys.stdout.write("x" * 65536)
