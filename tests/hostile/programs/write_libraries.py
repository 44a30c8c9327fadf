"""Change the standard library, site-packages and the interpreter.

Stopped by: they are mounted read-only.
"""

import contextlib
import json
import os
import site
import sys

for path in (os.__file__, json.__file__, sys.executable, *site.getsitepackages(), *sys.path, "/usr/lib", "/", "/dev"):
    for target in (path, os.path.join(path, "planted.py")):
        with contextlib.suppress(OSError):
            open(target, "a").close()
            print("reached", target)
    with contextlib.suppress(OSError):
        os.chmod(path, 0o777)
        print("reached", path)
