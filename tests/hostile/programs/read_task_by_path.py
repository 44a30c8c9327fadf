"""Open the task's file by its path.

Stopped by: the root holds only the interpreter and its libraries.
"""

import json

scene = json.loads(input())

print(open(scene["task"]).read())
