"""Read /etc/shadow and /etc/passwd.

Stopped by: the root holds only the interpreter and its libraries.
"""

import contextlib
import json

scene = json.loads(input())

for path in ("/etc/shadow", "/etc/passwd"):
    with contextlib.suppress(OSError):
        print("reached", len(open(path).read()))
