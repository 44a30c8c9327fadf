"""A task that lets one cell of a suite train per file `go`, so that a test decides how far the suite comes."""

import os
import time
from pathlib import Path

from fspo.tasks import Example
from fspo.tasks.procedural import Sort


class Held(Sort):
    """`sort`, whose first prompt waits for the file; without the variable `FSPO_TEST_HELD` it is `sort` itself."""

    def example(self, split: str, index: int) -> Example:
        if (split, index) == ("train", 0) and (name := os.environ.get("FSPO_TEST_HELD")):
            folder = Path(name)
            while not (folder / "go").exists():
                (folder / "waiting").touch()
                time.sleep(0.02)
            (folder / "go").unlink()
        return super().example(split, index)
