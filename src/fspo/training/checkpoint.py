"""Checkpoints: atomic, without pickle, the last few kept.

A checkpoint is a folder with the model as any Hugging Face tool reads it, the optimiser's moments, the answers not yet
trained on, a small JSON file, and checksums of them all, written under another name, flushed to disk, and renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fspo.files import sync
from fspo.model.loading import Policy, save

PREFIX = "step-"
CHECKSUMS = "checksums.json"  # SHA-256 of every other file


@dataclass
class State:
    """All that a run needs to go on, besides the weights in the policy and the moments in the optimiser."""

    step: int = 0  # the last one that is done
    next_index: int = 0  # of the next unseen prompt
    skipped: int = 0  # updates without a finite gradient
    objective: dict[str, Any] = field(default_factory=dict)  # its state
    waiting: list[dict[str, Any]] = field(default_factory=list)  # rollouts not yet trained on, as plain lists
    norms: list[float] = field(default_factory=list)  # gradient norms of the last updates
    warned: list[str] = field(default_factory=list)  # kinds of warnings that were given already


def path_of(folder: Path, step: int) -> Path:
    return folder / f"{PREFIX}{step:06d}"


def steps(folder: Path) -> list[int]:
    """The steps of the checkpoints in a folder, oldest first; whatever else lies there is ignored."""
    names = (p.name for p in folder.glob(f"{PREFIX}*") if p.is_dir())
    return sorted(int(match[1]) for name in names if (match := re.fullmatch(rf"{PREFIX}([0-9]{{6,}})", name)))


def latest(folder: Path, warn: Callable[[str], None] | None = None) -> Path | None:
    """The newest checkpoint whose files are all as they were written; `warn` gets a sentence about each damaged one.

    Where every checkpoint is damaged there is nothing to go on from, and that is an error.
    """
    problems = []
    for step in reversed(steps(folder)):
        path = path_of(folder, step)
        problem = damage(path)
        if problem is None:
            return path
        problems.append(f"the checkpoint {path} is damaged ({problem})")
        if warn is not None:
            warn(f"{problems[-1]}: an older one is used")
    if problems:
        raise ValueError(f"{problems[0]}, and there is no older one that is whole: start again in another folder")
    return None


def damage(path: Path) -> str | None:
    """What is wrong with the files of a checkpoint; None if they are what was written."""
    try:
        wanted: dict[str, str] = json.loads((path / CHECKSUMS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return f"{CHECKSUMS} is missing or cannot be read"
    for name, digest in wanted.items():
        if not (path / name).is_file():
            return f"{name} is missing"
        if _digest(path / name) != digest:
            return f"{name} is not what was written"
    return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write(folder: Path, state: State, policy: Policy, optimizer: torch.optim.Optimizer, keep: int) -> Path:
    """Save, then drop what is older than the last `keep`. Weights that are not finite are never written."""
    if not all(bool(torch.isfinite(w).all()) for w in policy.model.parameters()):
        raise FloatingPointError(
            f"the weights after step {state.step} are not finite and were not saved: lower update.lr, then go on from "
            "the last checkpoint with --resume, or start again"
        )
    folder.mkdir(parents=True, exist_ok=True)
    target, scratch = path_of(folder, state.step), folder / f"writing-{state.step:06d}"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    save(policy, scratch)
    moments: dict[str, Tensor] = {}
    for i, values in optimizer.state_dict()["state"].items():
        for key, value in values.items():
            moments[f"{i}.{key}"] = value.detach().contiguous()
    save_file(moments, scratch / "optimizer.safetensors")
    (scratch / "state.json").write_text(json.dumps(vars(state)))
    files = sorted(file for file in scratch.rglob("*") if file.is_file())
    digests = {str(file.relative_to(scratch)): _digest(file) for file in files}
    (scratch / CHECKSUMS).write_text(json.dumps(digests, indent=1))
    for path in (*files, scratch / CHECKSUMS, scratch):
        sync(path)
    if target.exists():
        shutil.rmtree(target)
    os.replace(scratch, target)
    sync(folder)
    known = steps(folder)
    kept = [step for step in known if step <= state.step][-keep:]
    for step in known:  # later ones are damaged, or the run would have gone on from them
        if step not in kept:
            shutil.rmtree(path_of(folder, step))
    return target


def read(folder: Path, optimizer: torch.optim.Optimizer) -> State:
    """The state of a checkpoint, with the moments put back into the optimiser; the model is loaded like any other."""
    moments = load_file(folder / "optimizer.safetensors")
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in moments.items():
        index, key = name.split(".", 1)
        state.setdefault(int(index), {})[key] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    return State(**json.loads((folder / "state.json").read_text()))


def clean(folder: Path) -> None:
    """Remove what a killed run was writing."""
    for scratch in folder.glob("writing-*"):
        shutil.rmtree(scratch)
