"""Hold leases, notifications and locks on files that other answers open, so that these fail or wait.

Stopped by: seccomp refuses F_SETLEASE, F_NOTIFY and flock.
"""

import contextlib
import fcntl
import json
import os

scene = json.loads(input())

for path in (json.__file__, os.__file__, scene["own"]):
    with contextlib.suppress(OSError):
        file = open(path)
        for command, value in ((fcntl.F_SETLEASE, fcntl.F_WRLCK), (fcntl.F_SETLEASE, fcntl.F_RDLCK)):
            with contextlib.suppress(OSError):
                fcntl.fcntl(file, command, value)
                print("reached a lease", path)
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            print("reached a lock", path)
with contextlib.suppress(OSError):
    fcntl.fcntl(os.open(os.path.dirname(os.__file__), os.O_RDONLY), fcntl.F_NOTIFY, fcntl.DN_ACCESS)
    print("reached a notification")
