"""A sampler with rounded weights: how weights are rounded, and that a run corrects for it with its log-probs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fspo
from fspo.config import TrainConfig
from fspo.model.loading import load
from fspo.rollout.precision import round_weights, rounded
from fspo.runs import Metrics, read_lines
from fspo.training.loop import train


@given(bits=st.integers(1, 22), value=st.floats(2.0**-90, 2.0**90, width=32), sign=st.sampled_from([-1.0, 1.0]))
def test_rounding_to_bits_is_to_the_nearest_and_keeps_what_fits(bits: int, value: float, sign: float) -> None:
    x = torch.tensor([sign * value])
    got = round_weights(x, bits)
    assert abs(float(got - x)) <= abs(float(x)) * 2.0 ** -(bits + 1) * (1 + 1e-6)
    assert torch.equal(round_weights(got, bits), got)
    assert torch.equal(round_weights(x, 23), x)


def test_seven_bits_are_bfloat16_and_float8_is_exact_for_its_own_numbers() -> None:
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(round_weights(x, 7), round_weights(x, "bfloat16"))
    grid = torch.arange(-448.0, 449.0).to(torch.float8_e4m3fn).float().unique()
    assert torch.equal(round_weights(grid, "float8"), grid)
    assert 0.5 < float((round_weights(x, "float8") - x).abs().max() / (round_weights(x, 3) - x).abs().max()) < 4


def test_the_exact_weights_are_back_after_sampling_also_after_an_error() -> None:
    policy = load("tiny:1x32")
    before = copy.deepcopy(policy.model.state_dict())

    def changed() -> list[str]:
        return [name for name, value in policy.model.state_dict().items() if not torch.equal(value, before[name])]

    def interrupted() -> None:
        with rounded(policy, 2):
            assert changed()
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        interrupted()
    assert not changed()


def settings(precision: Any, **rollout: Any) -> TrainConfig:
    return TrainConfig(
        model={"path": "tiny:1x32"}, warmup=None, steps=2,
        task={"name": "sort", "graded": True, "n_min": 2, "n_max": 6, "letters": 3},
        objective={"name": "fspo", "mismatch": {"c": 0.01}},
        rollout={"prompts": 4, "group": 8, "max_new_tokens": 12, "precision": precision, **rollout},
        update={"epochs": 1, "minibatches": 1, "all_rows": True}, eval={"prompts": 16},
    )  # fmt: skip


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_run_corrects_for_what_rounding_changed(tmp_path: Path, staleness: int) -> None:
    outside, widest = {}, {}
    for precision in (2, 23):
        train(settings(precision, staleness=staleness), tmp_path / str(precision))
        last = read_lines(tmp_path / str(precision), Metrics)[-1].model_dump()
        outside[precision] = last["mismatch_outside"]
        rows = pl.read_parquet(tmp_path / str(precision) / "records" / "*.parquet")
        widths = np.abs(rows["mismatch"].to_numpy() / np.sqrt(rows["length"].to_numpy()))
        widest[precision] = float(widths.max())
        assert outside[precision] == pytest.approx(np.mean(widths[-32:] > 0.01))  # of the last step
        mu = np.sum(rows["mismatch"].to_numpy()[-32:]) / np.sum(rows["length"].to_numpy()[-32:])
        assert last["mismatch_mu"] == pytest.approx(mu, abs=1e-7)
    assert outside[23] == 0.0  # 23 bits are all that float32 has
    assert outside[2] > 0.2
    assert widest[23] < 1e-4
    assert fspo.audit(tmp_path / "2", mismatch=True).mismatch is not None


def test_a_bad_precision_is_refused() -> None:
    for bad in (0, 24, "float16"):
        with pytest.raises(ValueError, match="precision"):
            settings(bad)
