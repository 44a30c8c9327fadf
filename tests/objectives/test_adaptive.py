"""The adaptive band reaches its rate, keeps its caps, can be saved and restored, and serves every band."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

import fspo
from fspo.objectives import LogBand, Totals
from fspo.objectives.sequence.adaptive_band import FLOOR, START, BandTracker
from helpers.batches import assert_equal, random_batch

SIGMA = 0.02
TRUE_C = 1.2815516 * SIGMA  # a tenth of the answers of one sign is further out
NO_TOTALS = Totals(1, 1, 0.0)


def simulate(
    rng: np.random.Generator, n: int, heavy: bool = False, sigma: float = SIGMA, spread: float = 0.5
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """S, L and A of n responses, L from 8 to 32,768, S with a deviation that grows as L^spread."""
    L = np.exp(rng.uniform(math.log(8), math.log(32768), n)).round()
    noise = rng.standard_t(4, n) / math.sqrt(2) if heavy else rng.standard_normal(n)
    S = -(sigma**2) / 2 * L + sigma * np.sqrt(L) * (L / 500) ** (spread - 0.5) * noise
    return torch.tensor(S), torch.tensor(L), torch.tensor(rng.choice([-0.5, 2.0], n))


def adaptive(name: str = "fspo", c: float = 0.2, drift: str | float = "bounded", **parameters: Any) -> LogBand:
    objective = fspo.objectives.get(name, clip_rate=0.1, c_low=c, c_high=c, drift=drift, **parameters)
    assert isinstance(objective, LogBand)
    return objective


def clipped(objective: LogBand, staleness: int, *rows: torch.Tensor) -> np.ndarray:
    """Which of the answers lose their gradient."""
    S, L, A = rows
    mu, low, high, *_ = widths = objective.half_widths(NO_TOTALS, staleness)
    z = (S - mu * L) / widths.width(L)
    return torch.where(A > 0, z > high, z < -low).numpy()


@pytest.mark.parametrize("heavy", [False, True], ids=["Gaussian", "Student t"])
@pytest.mark.parametrize("size", [0.1, 10.0])
def test_reaches_ten_percent_in_every_bin_from_a_wrong_start(size: float, heavy: bool) -> None:
    """Log-ratios ten times smaller and larger than those for which the first band is right."""
    objective = adaptive(c=5.0)
    rng = np.random.default_rng(0)
    for _ in range(300):
        for staleness in (1, 2):
            objective.observe(*simulate(rng, 512, heavy, size * staleness * SIGMA), staleness)
    for staleness in (1, 2):
        rows = simulate(np.random.default_rng(1), 400_000, heavy, size * staleness * SIGMA)
        report = fspo.fairness.measure(rows[1], 1.0 - clipped(objective, staleness, *rows), bins=8)
        for row in report.bins:
            assert row.clip_rate == pytest.approx(0.1, abs=0.015), (staleness, str(report))


@pytest.mark.parametrize("cap", [5.0, 0.015], ids=["free", "under its cap"])
@pytest.mark.parametrize("spread", [0.35, 0.5, 0.75])
@pytest.mark.parametrize("moved", [0.0, 3e-4], ids=["at rest", "moved outwards"])
def test_every_length_is_clipped_alike_whatever_the_law_of_s(spread: float, cap: float, moved: float) -> None:
    """Training moves answers outwards by a bit per token, so that a band of sqrt(L) clips the long ones more."""
    learnt = adaptive(c=cap, drift=-(SIGMA**2) / 2, exponent=0.7 if moved else 0.5)
    fixed = learnt.model_copy(update={"clip_rate": None, "exponent": 0.5})
    rng = np.random.default_rng(0)

    def answers(n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        S, L, A = simulate(rng, n, spread=spread)
        return S + moved * L**0.75 * A.sign(), L, A

    for k in range(800):
        learnt.observe(*answers(128), 1 + k % 2)
    rows = answers(200_000)
    flatness = {
        o.learns: fspo.fairness.measure(rows[1], 1.0 - clipped(o, 1, *rows), bins=8).flatness for o in (fixed, learnt)
    }
    assert flatness[True] < 0.08
    if spread != 0.5 and cap < 1:
        assert flatness[False] > 2 * flatness[True]


@pytest.mark.parametrize("size", [1, 8])
def test_small_batches_do_not_bias_the_rate(size: int) -> None:
    tracker = BandTracker(0.5)
    caps = (0.2, 0.2)
    rng, rates = np.random.default_rng(0), []
    for update in range(6000):
        S, L, A = simulate(rng, size)
        used = tracker.half_widths(1, caps)
        if update >= 1000:
            z = (S - used.mu * L) / used.width(L)
            rates.append(torch.where(A > 0, z > used.high, z < -used.low).double().mean())
        tracker.observe(S, L, A, 1, used=used, clip_rate=0.1, caps=caps)
    assert np.mean(rates) == pytest.approx(0.1, abs=0.015)


def test_answers_without_advantage_teach_nothing() -> None:
    """They are never clipped, so that a trainer need not compute them."""
    some, all_rows = adaptive(), adaptive()
    rng = np.random.default_rng(0)
    for k in range(20):
        S, L, A = simulate(rng, 64)
        A[::2] = 0
        all_rows.observe(S, L, A, k % 4)
        some.observe(S[1::2], L[1::2], A[1::2], k % 4)
    assert some.state_dict() == all_rows.state_dict()


def test_hard_caps_hold_whatever_is_observed() -> None:
    objective = adaptive(c=0.2)
    L, A = torch.full((64,), 100.0), torch.tensor([1.0, -1.0]).repeat(32)
    for sign in (1, -1):
        for _ in range(100):
            objective.observe(sign * (500 + 100 * torch.randn(64)), L, A, 3)
            mu, low, high, *_ = objective.half_widths(NO_TOTALS, 3)
            assert abs(mu) <= 0.2**2 / 2
            assert max(low, high) <= 0.2
    # On-policy data: z is 0, and the band stays at its floor instead of clipping rounding noise.
    for _ in range(50):
        objective.observe(torch.zeros(64), L, A, 0)
    assert objective.half_widths(NO_TOTALS, 0)[:3] == (0.0, FLOOR, FLOOR)
    # Once the data is sane again, so is the band.
    rng = np.random.default_rng(0)
    for _ in range(900):
        objective.observe(*simulate(rng, 256), 3)
    assert objective.half_widths(NO_TOTALS, 3).low == pytest.approx(TRUE_C, rel=0.1)


def test_a_staleness_not_seen_yet_has_the_band_of_the_next_fresher_one() -> None:
    objective = adaptive(c=5.0)
    rng = np.random.default_rng(0)
    for _ in range(50):
        objective.observe(torch.zeros(64), *simulate(rng, 64)[1:], 0)
        objective.observe(*simulate(rng, 64), 4)
    assert objective.half_widths(NO_TOTALS, 9) == objective.half_widths(NO_TOTALS, 4)
    assert objective.half_widths(NO_TOTALS, 3)[1:3] == (START, START)  # nothing fresher is off-policy


def test_the_loss_uses_the_band_of_its_staleness() -> None:
    objective = adaptive(reference_length=1)
    logprobs, mask = torch.full((1, 4), 0.02), torch.ones(1, 4, dtype=torch.bool)  # S = 0.08, first band ± 0.06
    out = objective(logprobs, torch.zeros(1, 4), torch.ones(1), mask, staleness=1)
    assert float(out.loss) == pytest.approx(-math.exp(2 * START), rel=1e-6)
    assert out.accepted.item() == 0
    assert objective(logprobs, torch.zeros(1, 4), torch.ones(1), mask, staleness=2).accepted.item() == 0
    S, A = torch.tensor([0.12, -0.12, 0.4, -0.4, 0.0]), torch.tensor([1.0, -1, 1, -1, 1])
    objective.observe(S, torch.tensor([4.0, 4, 4, 4, 0]), A, staleness=2)  # the last has no trained token
    wider = objective(logprobs, torch.zeros(1, 4), torch.ones(1), mask, staleness=2)
    assert wider.accepted.item() == 1
    assert objective(logprobs, torch.zeros(1, 4), torch.ones(1), mask, staleness=1).accepted.item() == 0


@pytest.mark.parametrize("name", ["fspo", "fspo_gate", "fspo_root"])
def test_a_recorded_band_reproduces_the_update(name: str) -> None:
    ours = adaptive(name, c=0.3)
    rng = np.random.default_rng(5)
    L = torch.from_numpy(rng.integers(4, 4000, 256)).double()
    for _ in range(5):
        S = torch.from_numpy(rng.normal(0, 0.1, 256)) * L.sqrt()
        ours.observe(S, L, torch.from_numpy(rng.choice([-1.0, 1.0], 256)), staleness=2)
    batch = random_batch(5)
    learnt = ours(*batch.arguments(), staleness=2)
    fixed = ours.recorded(learnt.metrics)
    assert not fixed.learns
    gspo = fspo.objectives.get("gspo")
    assert gspo.recorded(learnt.metrics) == gspo
    assert_equal(
        lambda x: ours(x, *batch.arguments()[1:], staleness=2).loss,
        lambda x: fixed(x, *batch.arguments()[1:]).loss, batch, name,
    )  # fmt: skip
    assert torch.equal(learnt.accepted, fixed(*batch.arguments()).accepted)


def test_state_survives_json_and_continues_identically() -> None:
    rng = np.random.default_rng(0)
    batches = [(*simulate(rng, 32), k % 3) for k in range(60)]
    straight, first, second = (fspo.objectives.get("fspo_gate") for _ in range(3))
    for batch in batches:
        straight.observe(*batch)
    for batch in batches[:31]:
        first.observe(*batch)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for batch in batches[31:]:
        second.observe(*batch)
    assert second.state_dict() == straight.state_dict()
    law = {"exponent": 0.5, "updates": 1, "log_pivot": 2.0}
    for bad in ({"0": {"mu": 1.0}}, {"law": law | {"log_pivot": None}}, {"law": law, "0": {"updates": 1, "mu": None}}):
        with pytest.raises(ValueError, match="not a state of fspo_gate"):
            second.load_state_dict(bad)
    one, nan = torch.ones(1), torch.tensor([math.nan])
    for rows in ((nan, one, one), (one, one, nan), (torch.ones(2), one, one)):
        with pytest.raises(ValueError, match="finite log-ratios"):
            second.observe(*rows)
    assert second.state_dict() == straight.state_dict()


@pytest.mark.parametrize(("clip_rate", "quantile"), [(1e-4, 3.719), (0.001, 3.090), (0.01, 2.326)])
def test_a_small_rate_does_not_overshoot(clip_rate: float, quantile: float) -> None:
    """Log-ratios that are four times larger after the first update: a step up is large where the rate is small."""
    objective = adaptive(c=0.1, drift="zero")
    objective = objective.model_copy(update={"clip_rate": clip_rate})
    rng, L = np.random.default_rng(0), torch.full((256,), 100.0)
    A = torch.tensor([1.0, -1.0]).repeat(128)
    for update in range(200):
        S = torch.tensor(rng.normal(0, (0.05, 0.2)[update > 0], 256))
        objective.observe(S, L, A, 1)
    low, high = objective.half_widths(NO_TOTALS, 1)[1:3]
    assert (low, high) == pytest.approx(2 * [min(0.1, 0.02 * quantile)], rel=0.25)


def test_the_caps_hold_from_the_first_update_on_whatever_the_exponent() -> None:
    for exponent in (0.5, 0.75, 1.0):
        objective = adaptive(c=0.1, exponent=exponent, drift="zero")
        L, A = torch.full((64,), 400.0), torch.tensor([1.0, -1.0]).repeat(32)
        for _ in range(3):
            assert objective.band(L, NO_TOTALS).bounds[1].max() <= 0.1 * math.sqrt(400) + 1e-9
            objective.observe(8 * torch.randn(64), L, A)


def test_what_has_no_range_says_so() -> None:
    S, L, _ = simulate(np.random.default_rng(0), 400)
    rows = fspo.objectives.Responses(S.numpy(), L.numpy(), np.tile([1.0, -1.0], 200))
    for name, parameters, note in (
        ("fspo", {"c_low": 0.0}, "half-width of 0"), ("rloo", {"clip_low": 0.0}, "half-width of 0"),
        ("fspo_gate", {}, "cannot clip 60.0%"),
    ):  # fmt: skip
        at = fspo.objectives.get(name, **parameters).at_clip_rate(rows, 0.6)
        assert at.objective is None
        assert note in at.note
    learnt = fspo.objectives.get("fspo_gate")
    before = learnt.state_dict()
    at = learnt.at_clip_rate(rows, 0.2)
    assert at.objective is not None
    at.objective.observe(*simulate(np.random.default_rng(0), 64))
    assert learnt.state_dict() == before
    with pytest.raises(ValueError, match=r"clip_rate = 0.5.* less than 0\.5"):
        fspo.objectives.get("fspo_gate", clip_rate=0.5)
