"""A bfloat16 model trains: its weights move as a float32 model's do, and a resumed run goes on bit by bit."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fspo.config import read
from fspo.model.loading import load
from fspo.runs import Metrics, NullObserver, Timing
from fspo.training.loop import train
from fspo.training.master_weights import FILE, rounded_away
from fspo.training.stopping import RunInterruptedError
from helpers.processes import fingerprint

SLOW_RATE = ["update.lr=1e-6", "update.epochs=4", "steps=4", "checkpoint={every: 2, keep: 9}"]


class _InterruptAtStep2(NullObserver):
    def step(self, metrics: Metrics, timing: Timing) -> None:
        if metrics.step == 2:
            os.kill(os.getpid(), signal.SIGINT)


def moved(start: str, folder: Path, dtype: str) -> float:
    """The share of the trained weights that differ from the start: of the master copies, where there are any."""
    last = folder / "checkpoints" / "step-000004"
    before = load(start, dtype=dtype).model
    if dtype == "float32":
        after = {name: p.detach() for name, p in load(str(last), dtype=dtype).model.named_parameters()}
    else:
        found = load_file(last / FILE)
        names = [name for name, _ in before.named_parameters()]
        after = {name: found[str(i)] for i, name in enumerate(names)}
    pairs = [(p.detach().float(), after[name].float()) for name, p in before.named_parameters()]
    changed = sum(int((a != b).sum()) for a, b in pairs)
    return changed / float(sum(a.numel() for a, _ in pairs))


def test_small_updates_are_not_rounded_away(small: list[str], tmp_path: Path) -> None:
    start = next(s.partition("=")[2] for s in small if s.startswith("model.path="))
    shares = {}
    for dtype in ("float32", "bfloat16"):
        train(read(None, [*small, *SLOW_RATE, f"model.dtype={dtype}"]), tmp_path / dtype)
        shares[dtype] = moved(start, tmp_path / dtype, dtype)
    assert shares["bfloat16"] > 0.95 * shares["float32"] > 0.5
    published = load(str(tmp_path / "bfloat16" / "checkpoints" / "step-000004"), dtype="bfloat16")
    assert all(p.dtype == torch.bfloat16 for p in published.model.parameters())
    assert not (tmp_path / "float32" / "checkpoints" / "step-000004" / FILE).exists()


@pytest.mark.parametrize("budget", [16384, 60])
def test_a_bfloat16_run_resumes_bit_by_bit(small: list[str], tmp_path: Path, budget: int) -> None:
    settings = [*small, *SLOW_RATE, "model.dtype=bfloat16", f"update.token_budget={budget}"]
    train(read(None, settings), tmp_path / "whole")
    with pytest.raises(RunInterruptedError):
        train(read(None, settings), tmp_path / "run", observer=_InterruptAtStep2())
    train(read(None, settings), tmp_path / "run", resume=True)
    assert fingerprint(tmp_path / "run") == fingerprint(tmp_path / "whole")
    masters = [(tmp_path / name / "checkpoints" / "step-000004" / FILE).read_bytes() for name in ("run", "whole")]
    assert masters[0] == masters[1]


@pytest.mark.parametrize(
    ("dtype", "lr", "low", "high"),
    [
        (torch.bfloat16, 1e-6, 0.9, 1.0),
        (torch.float16, 1e-6, 0.5, 1.0),
        (torch.bfloat16, 1e-2, 0.0, 0.0),
        (torch.float32, 1e-9, 0.0, 0.0),
    ],
)
def test_how_many_updates_are_rounded_away(dtype: torch.dtype, lr: float, low: float, high: float) -> None:
    weights = (0.02 * torch.randn(64, 64, generator=torch.Generator().manual_seed(0))).to(dtype)
    estimate = rounded_away([torch.nn.Parameter(weights)], lr)
    same = ((weights + torch.tensor(lr, dtype=dtype)) == weights).float().mean()
    assert low <= estimate <= high
    assert dtype == torch.float32 or estimate <= float(same) + 1e-6  # never more than really are
