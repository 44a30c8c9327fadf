"""Read a file of the same user with mode 0600.

Wall: the root holds only the interpreter and its libraries.
"""

import json

scene = json.loads(input())

print(open(scene["private"]).read())
