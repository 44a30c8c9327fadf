"""The command as a process of its own, and what a run leaves behind."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def fspo(*arguments: str, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command, as a user runs it."""
    done = subprocess.run(
        [sys.executable, "-m", "fspo.cli", *arguments], capture_output=True, text=True, timeout=300, **options
    )
    if check and done.returncode:
        raise AssertionError(f"exit {done.returncode}: {done.stdout}\n{done.stderr}")
    return done


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fspo.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        **options,
    )


def fingerprint(folder: Path) -> dict[str, str]:
    """Hashes of everything that must not depend on whether a run was interrupted."""
    last = max((folder / "checkpoints").glob("step-*"))
    files = [last / "model.safetensors", last / "optimizer.safetensors", last / "state.json"]
    files += [folder / f"{name}.jsonl" for name in ("metrics", "evaluations", "samples")]
    files += [*folder.glob("cosine.jsonl"), *sorted((folder / "records").glob("*"))]
    return {str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}
