"""The ledger of a foreign trainer's updates: the same however a batch is split."""

import math

import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fspo import objectives
from fspo.engines.ledger import Ledger
from fspo.local.records import read_lines
from fspo.objectives import Totals


def update(seed: int, rows: int = 24, width: int = 12):
    """Log-probs of an update that has moved, its advantages and its mask."""
    generator = torch.Generator().manual_seed(seed)
    old = -torch.rand(rows, width, generator=generator) - 0.5
    new = (old + 0.1 * torch.randn(rows, width, generator=generator) - 0.01).requires_grad_()
    lengths = torch.randint(1, width + 1, (rows,), generator=generator)
    mask = torch.arange(width) < lengths[:, None]
    return new, old, torch.randn(rows, generator=generator), mask


def run(objective, cuts: list[int], rollouts: int = 3, updates: int = 2):
    """Losses, gradients and metrics of a few rollouts whose updates are cut into micro-batches at `cuts`."""
    ledger, found = Ledger(objective, updates), []
    for seed in range(rollouts * updates):
        new, old, A, mask = update(seed)
        sequences, tokens = len(mask), int(mask.sum())
        loss = torch.tensor(0.0)
        for part in torch.tensor_split(torch.arange(len(mask)), cuts):
            if len(part):
                out = ledger.loss(new[part], old[part], A[part], mask[part], sequences=sequences, tokens=tokens)
                loss = loss + out.loss
        loss.backward()
        found.append((float(loss.detach()), new.grad, ledger.close()))
    return found


LEARNING = [(name, {"drift": "kl"}) for name in ("fspo", "fspo_studentized")]  # from the batch
CASES = [(name, {}) for name in objectives.names()] + LEARNING


@given(st.lists(st.integers(1, 23), max_size=5).map(sorted), st.sampled_from(CASES))
@settings(max_examples=60, deadline=None)
def test_the_split_into_micro_batches_changes_nothing(cuts, case):
    name, parameters = case
    whole, parts = run(objectives.get(name, **parameters), []), run(objectives.get(name, **parameters), cuts)
    for (loss, gradient, metrics), (loss_, gradient_, metrics_) in zip(whole, parts, strict=True):
        assert loss == pytest.approx(loss_, rel=1e-5, abs=1e-6)
        torch.testing.assert_close(gradient, gradient_)
        assert metrics["mu"] == pytest.approx(metrics_["mu"], rel=1e-9)
        assert metrics["clip_rate"] == pytest.approx(metrics_["clip_rate"], abs=1e-6)


def test_the_drift_is_that_of_the_same_place_in_the_rollout_before():
    objective = objectives.get("fspo", drift="kl", clip_rate=0.2)
    ledger, sums = Ledger(objective, updates=2), []
    for seed in range(4):
        new, old, A, mask = update(seed)
        known = ledger.totals(len(mask), int(mask.sum()))
        if seed == 0:
            assert known.drift == 0
            assert known.scale(0.0) == math.inf
        else:
            expected = sums[seed - 2] if seed >= 2 else sums[0]
            assert known.drift == pytest.approx(expected.drift)
            assert known.scale(known.drift) == pytest.approx(expected.scale(expected.drift))
            assert known.drift_low_variance == pytest.approx(expected.drift_low_variance)
        ledger.loss(new, old, A, mask, sequences=len(mask), tokens=int(mask.sum()))
        sums.append(Totals.of(new, old, mask))
        ledger.close()
    assert (ledger.step, ledger.update) == (3, 0)


def test_an_on_policy_update_says_nothing_about_the_scale():
    ledger = Ledger(objectives.get("fspo", drift="kl", clip_rate=0.2), updates=2)
    _, old, A, mask = update(0)
    ledger.loss(old, old, A, mask, sequences=len(mask), tokens=int(mask.sum()))
    assert ledger.close()["on_policy"]
    assert ledger.totals(len(mask), int(mask.sum())).scale(0.0) == math.inf


def test_an_update_where_nothing_moved_leaves_what_was_known():
    ledger = Ledger(objectives.get("fspo", drift="kl", clip_rate=0.2), updates=2)
    for seed in range(4):
        new, old, A, mask = update(seed)
        count = {"sequences": len(mask), "tokens": int(mask.sum())}
        ledger.loss(new if seed == 1 else old, old, A, mask, **count)
        ledger.close()
    new, old, _, mask = update(1)
    ledger.update = 1
    known, measured = ledger.totals(len(mask), int(mask.sum())), Totals.of(new, old, mask)
    assert known.scale(known.drift) == pytest.approx(measured.scale(measured.drift))


def test_metrics_of_the_objective_are_those_of_all_rows():
    objective = objectives.get("grpo", kl={"coef": 0.1})
    new, old, A, mask = update(0)
    whole = objective(new, old, A, mask, ref_logprobs=old - 0.1).metrics["kl_reference"]
    ledger = Ledger(objective, 1)
    for part in (slice(0, 5), slice(5, 24)):
        batch = [value[part] for value in (new, old, A, mask)]
        ledger.loss(*batch, sequences=24, tokens=int(mask.sum()), ref_logprobs=old[part] - 0.1)
    metrics = ledger.close()
    assert metrics["kl_reference"] == pytest.approx(whole, rel=1e-5)
    assert metrics["kl"] == pytest.approx(-Totals.of(new, old, mask).drift_low_variance, rel=1e-5)


def test_updates_without_rows_and_a_rollout_that_ends_early(tmp_path):
    ledger = Ledger(objectives.get("fspo"), updates=3, folder=tmp_path)
    new, old, A, mask = update(0)
    for trained in (mask & False, mask):
        loss = ledger.loss(new, old, A, trained, sequences=len(mask), tokens=int(mask.sum())).loss
        loss.backward()
        ledger.close()
    assert not (tmp_path / "records").exists()
    ledger.flush()
    assert set(pl.read_parquet(tmp_path / "records")["update"]) == {1}
    for _ in range(4):  # to the end of this rollout, and one with nothing to train on, which leaves no record
        ledger.loss(new, old, A, mask & False, sequences=len(mask), tokens=1)
        assert ledger.close() == {}
    assert (ledger.step, ledger.update) == (3, 0)
    assert set(pl.read_parquet(tmp_path / "records")["step"]) == {1}


def test_records_have_every_row_of_every_update(tmp_path):
    ledger = Ledger(objectives.get("fspo"), updates=2, folder=tmp_path)
    for seed in range(4):
        new, old, A, mask = update(seed)
        rewards = {"reward": [0.5] * len(mask)}
        ledger.loss(new, old, A, mask, sequences=len(mask), tokens=int(mask.sum()), columns=rewards)
        ledger.close(reward=0.5)
    rows = pl.read_parquet(tmp_path / "records")
    assert len(rows) == 4 * 24
    assert set(rows["step"]) == {1, 2}
    assert set(rows["update"]) == {0, 1}
    new, old, A, mask = update(3)
    last = rows.filter(step=2, update=1)
    assert last["length"].to_list() == mask.sum(-1).tolist()
    torch.testing.assert_close(torch.tensor(last["advantage"].to_list()), A)
    torch.testing.assert_close(torch.tensor(last["log_ratio"].to_list()), ((new - old) * mask).sum(-1).detach())
    assert last["reward"].to_list() == [0.5] * 24
    assert last["difficulty"].null_count() == 24


def test_answers_without_advantage_are_in_no_clip_rate(tmp_path):
    """Their gradient is 0 with or without clipping. They still say how far the policy has moved."""
    objective = objectives.get("fspo", c_low=0.05, c_high=0.05, drift="zero")
    ledger, pulls = Ledger(objective, 1, tmp_path), Ledger(objective, 1)
    new, old, A, mask = update(0)
    flat = mask.sum(-1) > 6
    for book, kept in ((ledger, torch.ones_like(flat)), (pulls, ~flat)):
        batch = (new[kept], old[kept], A.masked_fill(flat, 0.0)[kept], mask[kept])
        book.loss(*batch, sequences=24, tokens=int(mask.sum()))
    found, alone = ledger.close(), pulls.close()
    assert found["clip_rate"] > 0
    for key in ("clip_rate", "lre", "flatness", "clip_by_length"):
        assert found[key] == alone[key], key
    assert found["mu"] == pytest.approx(Totals.of(new, old, mask).drift)
    (written,) = read_lines(tmp_path / "metrics.jsonl")
    assert written["clip_rate"] == found["clip_rate"]
    assert [b["count"] for b in written["clip_by_length"]] == [b["count"] for b in alone["clip_by_length"]]


def test_an_update_without_any_advantage_has_no_clip_rate(tmp_path):
    ledger = Ledger(objectives.get("fspo"), 1, tmp_path)
    new, old, A, mask = update(0)
    ledger.loss(new, old, 0 * A, mask, sequences=24, tokens=int(mask.sum()))
    found = ledger.close()
    assert not {"clip_rate", "lre", "clip_by_length"} & set(found)
    (written,) = read_lines(tmp_path / "metrics.jsonl")
    assert not {"clip_rate", "lre", "clip_by_length"} & set(written)
    assert written["on_policy"] is False


def test_a_state_goes_on_where_it_was(tmp_path):
    whole, first = Ledger(objectives.get("fspo_adaptive"), 2), Ledger(objectives.get("fspo_adaptive"), 2)
    again = Ledger(objectives.get("fspo_adaptive"), 2)
    ends = []
    for seed in range(4):
        if seed == 2:
            again.load_state_dict(first.state_dict())
        for ledger in (whole, first if seed < 2 else again):
            new, old, A, mask = update(seed)
            out = ledger.loss(new, old, A, mask, sequences=len(mask), tokens=int(mask.sum()))
            ledger.close()
            ends.append(out.loss.item())
    assert ends[0::2] == ends[1::2]


def test_an_update_without_a_loss_is_refused():
    with pytest.raises(RuntimeError, match="before any loss"):
        Ledger(objectives.get("fspo"), 1).close()
    with pytest.raises(ValueError, match="updates = 0"):
        Ledger(objectives.get("fspo"), 0)
