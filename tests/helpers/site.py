"""The documentation, built as `make docs` does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TREE = Path(__file__).parents[2]


def build_site(folder: Path) -> Path:
    """Build the site into a folder; a warning, or anything else that is printed, fails."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    silent = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True, env=silent)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return folder
