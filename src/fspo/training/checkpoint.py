"""Checkpoints: atomic, without pickle, the last few kept.

A checkpoint is a folder that holds the model as any Hugging Face tool reads it, the optimiser's moments, and a small
JSON with the answers that wait to be trained on. It is written under another name, flushed to disk, and renamed: a
folder with the right name is whole.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fspo.files import sync
from fspo.model.loading import Policy, save

PREFIX = "step-"


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


def latest(folder: Path) -> Path | None:
    """The newest checkpoint, if there is one."""
    known = steps(folder)
    return path_of(folder, known[-1]) if known else None


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
    for path in (*(file for file in scratch.rglob("*") if file.is_file()), scratch):
        sync(path)
    os.replace(scratch, target)
    sync(folder)
    for step in steps(folder)[:-keep]:
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
