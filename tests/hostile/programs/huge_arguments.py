"""Start a program with huge arguments and environment.

Wall: RLIMIT_AS, RLIMIT_NPROC.
"""

import contextlib
import json
import subprocess
import sys

scene = json.loads(input())

for size in (10**5, 10**6, 10**7):
    with contextlib.suppress(OSError):
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", "pass"], env={str(i): "x" * 1000 for i in range(size // 1000)}
        )
