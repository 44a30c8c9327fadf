"""The command `fspo` that ends itself by SIGKILL at a file operation in a folder, counted by the interpreter's audit.

    python -m helpers.killed_run FOLDER N train ...

With N = 0 it runs to its end and prints how many operations there were.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

EVENTS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree")


def main() -> None:
    folder, last = str(Path(sys.argv[1]).resolve()), int(sys.argv[2])
    count = 0

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        if event in EVENTS and str(arguments[0]).startswith(folder) and os.path.exists(f"{folder}/run.json"):
            count += 1
            if count == last:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    from fspo.cli.main import main as command

    sys.argv[:] = ["fspo", *sys.argv[3:]]
    try:
        command()
    except SystemExit as stop:
        if stop.code:
            raise
    print(f"operations: {count}")


if __name__ == "__main__":
    main()
