"""Find the task's file in `/proc/*/cmdline` and print the expected output; kill and stop processes of the host.

Stopped by: a process namespace of its own.
"""

import contextlib
import json
import os
import signal

scene = json.loads(input())

for name in os.listdir("/proc"):
    if name.isdigit():
        with contextlib.suppress(OSError):
            for word in open(f"/proc/{name}/cmdline").read().split("\0"):
                if word.endswith("/task.jsonl"):
                    print(open(word).read())
if os.getuid() != scene["uid"]:  # as the same user without isolation, it would end the session of who runs the tests
    for sign in (signal.SIGINT, signal.SIGSTOP, signal.SIGKILL):
        for pid in (1, os.getppid(), *scene["victims"]):
            with contextlib.suppress(OSError):
                os.kill(pid, sign)
    with contextlib.suppress(OSError):
        os.kill(-1, signal.SIGKILL)
