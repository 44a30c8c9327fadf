"""Modules and packages with tasks or objectives of their own, written for a test."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def write_package(folder: Path, module: str, code: str, group: str, entries: dict[str, str]) -> None:
    """A module, and the metadata that an installer would write for its entry points."""
    (folder / f"{module}.py").write_text(code)
    metadata = folder / f"{module}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    lines = [f"{name} = {target}" for name, target in entries.items()]
    (metadata / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines]) + "\n")


def printed(code: str, folder: Path) -> Any:
    """What a new process with this folder on its path prints, read as JSON."""
    path = os.pathsep.join([str(folder), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
