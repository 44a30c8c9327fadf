"""The command, in this process or as one of its own, and what a run leaves behind."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fspo.runs import Metrics, Observer, Timing

COMMAND = [sys.executable, "-m", "fspo"]


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    returncode: int
    stdout: str
    stderr: str


class Command(Protocol):
    """The command in this process, see the fixture `command`."""

    def __call__(self, *arguments: str, check: bool = True) -> Done: ...


def fspo(*arguments: str, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command, as a user runs it."""
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, **options)
    if check and done.returncode:
        raise AssertionError(f"exit {done.returncode}: {done.stdout}\n{done.stderr}")
    return done


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """The same, left to run."""
    return subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        **options,
    )


def lines(path: Path, count: int, process: subprocess.Popen[str]) -> int:
    """Wait until a file of a running command has this many lines; how many it has then."""
    while True:
        known = path.read_text().count("\n") if path.is_file() else 0
        if known >= count:
            return known
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.005)


def fingerprint(folder: Path) -> dict[str, str]:
    """Hashes of everything that must not depend on whether a run was interrupted."""
    last = max((folder / "checkpoints").glob("step-*"))
    files = [last / "model.safetensors", last / "optimizer.safetensors", last / "state.json"]
    files += [folder / f"{name}.jsonl" for name in ("metrics", "evaluations", "samples")]
    files += [*folder.glob("cosine.jsonl"), *sorted((folder / "records").glob("*"))]
    return {str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


class Listener(Observer):
    """Keeps the warnings of a run, and sends signals to this process after its third step."""

    def __init__(self, *numbers: int) -> None:
        self.warnings: list[str] = []
        self.numbers = numbers

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def step(self, metrics: Metrics, timing: Timing) -> None:
        for number in self.numbers if metrics.step == 3 else ():
            os.kill(os.getpid(), number)
