"""A run's folder: which folder is one, what in it may be read, and who may write to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# What makes a folder that of a run.
PARTS = ("config.yaml", "run.json", "metrics.jsonl", "evaluations.jsonl", "samples.jsonl", "records")


class RunWarning(UserWarning):
    """Something about a run's folder that the user should know."""


def is_run(folder: Path) -> bool:
    """Whether the folder has any file of a run."""
    return any((folder / name).exists() for name in PARTS)


def run_folder(folder: Path) -> Path:
    """The folder of a run: this one, or its `fspo/`, which FSPOTrainer writes into the output folder of TRL."""
    inside = folder / "fspo"
    return inside if not is_run(folder) and is_run(inside) and _stays_in(folder, inside) else folder


def own_file(path: Path, folder: Path) -> bool:
    """Whether there is such a file in a run's folder. A link out of the folder, which may be from anywhere, is none."""
    return path.is_file() and _stays_in(folder, path)


def _stays_in(folder: Path, path: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder against a second process until the end; the lock goes with the process, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # Windows has no such lock
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another process is writing to {folder}: wait for it to end, or choose another folder"
            ) from None
        yield
    finally:
        os.close(descriptor)


@contextmanager
def claimed(folder: Path, *, resume: bool) -> Iterator[None]:
    """A folder for a run: not one that holds a run already, unless it is resumed."""
    if not resume and (found := next((name for name in PARTS if (folder / name).exists()), None)):
        way = "add --resume to go on with it, or choose" if found == "config.yaml" else "choose"
        raise ValueError(f"{folder} already holds a run (it has {found}): {way} another folder")
    with locked(folder):
        yield
