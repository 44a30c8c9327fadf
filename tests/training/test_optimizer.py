"""The optimiser: the limit on the norm of a gradient, and float32 weights behind a bfloat16 model."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path
from statistics import median

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from fspo.config import UpdateConfig, read
from fspo.model.loading import load
from fspo.runs import Metrics, Observer, Timing
from fspo.training.loop import train
from fspo.training.stopping import RunInterruptedError
from fspo.training.update import MASTER_FILE, WINDOW, NormLimit, rounded_away
from helpers.processes import fingerprint

norms = st.lists(st.floats(0.01, 100), min_size=1, max_size=100)
SLOW_RATE = ["update.lr=1e-6", "update.epochs=4", "steps=4", "checkpoint={every: 2, keep: 9}"]


def limited(limit: NormLimit, norm: float) -> tuple[float, bool, float]:
    """What the limit says about a gradient of this norm, and the norm that it leaves."""
    weight = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    weight.grad = torch.full((4,), norm / 2, dtype=torch.float64)
    before, clipped = limit.apply([weight])
    return before, clipped, float(weight.grad.norm())


@given(values=norms, scale=st.sampled_from([2.0**-20, 0.25, 4.0, 2.0**20]), ratio=st.floats(0.5, 4))
def test_a_relative_limit_does_not_depend_on_the_scale(values: list[float], scale: float, ratio: float) -> None:
    plain, scaled = (NormLimit(UpdateConfig(clip_ratio=ratio)) for _ in range(2))
    for value in values:
        before, clipped, after = limited(plain, value)
        other = limited(scaled, scale * value)
        assert other[::2] == pytest.approx((scale * before, scale * after))
        assert other[1] == clipped


@given(values=norms)
def test_the_limit_is_a_multiple_of_the_median_norm(values: list[float]) -> None:
    limit = NormLimit(UpdateConfig(clip_ratio=1.5))
    for k, value in enumerate(values):
        known = values[:k][-WINDOW:]
        largest = 1.5 * median(known) if known else math.inf
        assert limit.largest == pytest.approx(largest)
        assert limited(limit, value)[2] == pytest.approx(min(value, largest))


def test_both_limits_and_none() -> None:
    assert limited(NormLimit(UpdateConfig(clip_norm=1.0, clip_ratio=None)), 8.0) == (8.0, True, 1.0)
    assert limited(NormLimit(UpdateConfig(clip_norm=None, clip_ratio=None)), 8.0) == (8.0, False, 8.0)
    both = NormLimit(UpdateConfig(clip_norm=3.0, clip_ratio=2.0))
    for norm, largest in ((1.0, 2.0), (5.0, 3.0)):
        both.norms.clear()
        both.norms.append(norm)
        assert both.largest == largest


@pytest.mark.parametrize("norm", [0.0, math.nan, math.inf])
def test_what_is_no_gradient_is_not_remembered(norm: float) -> None:
    """Batches without a gradient must not pull the median, and with it the limit, down to zero."""
    limit = NormLimit(UpdateConfig())
    limited(limit, 1.0)
    limited(limit, norm)
    assert list(limit.norms) == [1.0]


class _InterruptAtStep2(Observer):
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
        master = load_file(last / MASTER_FILE)
        names = [name for name, _ in before.named_parameters()]
        after = {name: master[str(i)] for i, name in enumerate(names)}
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
    assert not (tmp_path / "float32" / "checkpoints" / "step-000004" / MASTER_FILE).exists()


@pytest.mark.parametrize("budget", [16384, 60])
def test_a_bfloat16_run_resumes_bit_by_bit(small: list[str], tmp_path: Path, budget: int) -> None:
    settings = [*small, *SLOW_RATE, "model.dtype=bfloat16", f"update.token_budget={budget}"]
    train(read(None, settings), tmp_path / "whole")
    with pytest.raises(RunInterruptedError):
        train(read(None, settings), tmp_path / "run", observer=_InterruptAtStep2())
    train(read(None, settings), tmp_path / "run", resume=True)
    assert fingerprint(tmp_path / "run") == fingerprint(tmp_path / "whole")
    masters = [
        (tmp_path / name / "checkpoints" / "step-000004" / MASTER_FILE).read_bytes() for name in ("run", "whole")
    ]
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
