"""An update: answers with advantage 0 are left out, and nothing is learnt differently; its norm, and its direction."""

from __future__ import annotations

import math
import random
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fspo import objectives
from fspo.config import UpdateConfig, read
from fspo.model.answers import Answers
from fspo.model.forward import LogProbs, logprobs
from fspo.runs import Cosine, Metrics, read_lines
from fspo.runs.recorder import Recorder, Update
from fspo.training.loop import train
from fspo.training.update import WINDOW, Learner, NormLimit, measure_direction, policy_logprobs
from helpers.batches import random_batch
from helpers.policies import VOCABULARY, make
from helpers.processes import fingerprint

LEARNT = {"clip_rate": 0.1, "drift": "bounded"}
FAMILIES: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in objectives.names()]
FAMILIES += [
    ("fspo", {"drift": "kl"}),
    ("fspo", LEARNT),
    ("fspo", {"clip_rate": 0.2}),
    ("fspo", {"kl": {"coef": 0.1}}),
    ("grpo", {"entropy_coef": 0.1}),
]
GROUPS, EACH = 4, 3


def sampled_answers(seed: int, advantages: list[float]) -> Answers:
    rng = random.Random(seed)

    def ids(length: int) -> list[int]:
        return [rng.randrange(VOCABULARY) for _ in range(length)]

    n = GROUPS * EACH
    return Answers(
        prompts=[ids(rng.randint(1, 6)) for _ in range(GROUPS)],
        completions=[ids(rng.randint(1, 12)) for _ in range(n)], group=[i // EACH for i in range(n)],
        finished=[True] * n, texts=[""] * n, rewards=[0.0] * n, advantages=advantages,
        examples=[{"index": g, "task": "", "prompt": "", "difficulty": 0.0, "attributes": "{}"} for g in range(GROUPS)],
    )  # fmt: skip


def learned(
    name: str, parameters: dict[str, Any], advantages: list[float], *, seed: int = 0, budget: int = 60, every: bool,
    stale: int = 0,
) -> tuple[Learner, list[Update], list[tuple[list[torch.Tensor], float]], Metrics]:  # fmt: skip
    """Two steps in double precision: the learner, its updates, of each its gradient and the largest entry of
    sum |gradient of a micro-batch|, and the metrics."""
    overrides = ["update.lr=0.01", "update.minibatches=2", f"update.token_budget={budget}", "rollout.prompts=4",
                 f"update.all_rows={every}", f"rollout.staleness={stale}"]  # fmt: skip
    config = read(None, overrides)
    policy = make("qwen3", torch.float64)
    objective = objectives.get(name, **parameters)
    sampled = sampled_answers(seed, advantages)
    if objective.kl is not None:
        sampled.reference = policy_logprobs(make("qwen3", torch.float64), sampled, 1.0, 1000)
    learner = Learner(policy, objective, config)
    # Answers of one token to prompts of one token give queries a gradient of 0 but for rounding. Adam divides by its
    # size + 1e-8: that would turn rounding of 1e-16 into moves of 1e-9.
    learner.optimizer.param_groups[0]["eps"] = 0.1
    gradients: list[tuple[list[torch.Tensor], float]] = []
    step, sums = learner.optimizer.step, [torch.zeros_like(p) for p in learner.parameters]
    for weight, total in zip(learner.parameters, sums, strict=True):

        def add(gradient: torch.Tensor, total: torch.Tensor = total) -> None:
            total.add_(gradient.abs())

        weight.register_hook(add)

    def recorded() -> None:
        gradient = [p.grad.clone() for p in learner.parameters if p.grad is not None]
        gradients.append((gradient, max(float(total.max()) for total in sums)))
        torch._foreach_zero_(sums)
        step()

    learner.optimizer.step = recorded  # type: ignore[method-assign, assignment]
    # A second step, so that momentum of the first moves the weights even where nothing has a gradient.
    second = [sampled_answers(seed + 1, advantages[::-1])] if objective.kl is None else []
    updates: list[Update] = []
    for number, answers in enumerate([sampled, *second], 1):
        if stale:
            learner.take_old(answers, range(len(answers)))
        updates += learner.learn(answers, number + 2 * stale)
    recorder = Recorder()
    for update in updates[:4]:
        recorder.add(update)
    return learner, updates, gradients, recorder.close(1, entropy=learner.entropy(sampled))


def agree(name: str, parameters: dict[str, Any], advantages: list[float], **options: Any) -> list[Update]:
    """The same gradients, weights, state and loss with every row and with those that matter; the latter's updates.

    The order of sums differs, so that an entry may differ by rounding of what is added up, not only of the entry.
    """
    every, expected, wanted, _ = learned(name, parameters, advantages, every=True, **options)
    some, updates, gradients, _ = learned(name, parameters, advantages, every=False, **options)
    rounding = 256 * torch.finfo(torch.float64).eps * max(size for _, size in wanted)
    for (a, _), (b, _) in zip(wanted, gradients, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-9, atol=rounding)
    for one, other in zip(every.parameters, some.parameters, strict=True):
        torch.testing.assert_close(one.detach(), other.detach(), rtol=1e-9, atol=rounding)
    for key, state in every.objective.state_dict().items():
        assert some.objective.state_dict()[key] == pytest.approx(state, rel=1e-9, abs=1e-12)
    for u, v in zip(expected, updates, strict=True):
        assert v.members == u.members
        assert len(u.computed) == len(u.members)
        assert not v.skipped
        assert v.metrics["loss"] == pytest.approx(u.metrics["loss"], rel=1e-9, abs=1e-13)
        np.testing.assert_allclose(v.log_ratio, u.log_ratio[v.computed], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(v.accepted, u.accepted[v.computed], rtol=1e-9, atol=1e-12)
    return updates


@pytest.mark.parametrize(("name", "parameters"), FAMILIES, ids=str)
@settings(max_examples=3)
@given(data=st.data())
def test_the_same_is_learnt_with_and_without(name: str, parameters: dict[str, Any], data: st.DataObject) -> None:
    value = st.one_of(st.just(0.0), st.floats(0.05, 2), st.floats(-2, -0.05))
    advantages = data.draw(st.lists(value, min_size=GROUPS * EACH, max_size=GROUPS * EACH))
    budget = data.draw(st.sampled_from([20, 60, 10_000]))
    agree(name, parameters, advantages, seed=data.draw(st.integers(0, 1000)), budget=budget)


@pytest.mark.parametrize(("name", "parameters"), FAMILIES, ids=str)
def test_whole_groups_and_whole_minibatches_of_zeros(name: str, parameters: dict[str, Any]) -> None:
    one_group = [0.0] * 6 + [1.0, -0.5, -0.5] + [0.0] * 3
    updates = agree(name, parameters, one_group)
    if not objectives.get(name, **parameters).needs_all_rows:
        assert sorted(len(u.computed) for u in updates[:4]) == [0, 0, 3, 3]
        for columns in (u.columns for u in updates):  # what was left out is recorded without a log-ratio
            left_out = [advantage == 0 for advantage in columns["advantage"]]
            assert [S is None for S in columns["log_ratio"]] == [a is None for a in columns["accepted"]] == left_out


def test_stale_answers_are_left_out_too() -> None:
    updates = agree("fspo", {}, [1.0, 0.0, -1.0] * GROUPS, stale=1)
    assert [(u.staleness, len(u.computed)) for u in updates] == 2 * [(4 + k, 4) for k in range(4)]


@pytest.mark.parametrize(("name", "parameters"), [("fspo", {}), ("fspo", LEARNT), ("grpo", {})], ids=str)
def test_no_row_has_a_gradient(name: str, parameters: dict[str, Any]) -> None:
    agree(name, parameters, [0.0] * GROUPS * EACH)
    *_, metrics = learned(name, parameters, [0.0] * GROUPS * EACH, every=False)
    assert metrics.loss == metrics.grad_norm == 0
    if not parameters:
        assert metrics.rows == 24
        assert (metrics.kl, metrics.entropy, metrics.ess) == (None, None, None)


def test_which_objectives_need_all_rows() -> None:
    named = {name for name in objectives.names() if objectives.get(name).needs_all_rows}
    assert named == {"clip_cov", "kl_cov"}
    for parameters in ({"drift": "kl"}, {"kl": {"coef": 0.1}}, {"entropy_coef": 0.1}):
        assert objectives.get("fspo", **parameters).needs_all_rows, parameters


def test_answers_whose_first_forward_is_not_finite_move_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their old log-probs are unknown, so that every update on them is skipped, and counted."""
    calls: list[bool] = []

    def broken(*inputs: Any, **options: Any) -> LogProbs:
        out = logprobs(*inputs, **options)
        calls.append(torch.is_grad_enabled())
        return out._replace(logprobs=out.logprobs * (math.nan if sum(calls) == 1 else 1.0))

    monkeypatch.setattr("fspo.training.update.logprobs", broken)
    config = read(None, ["update.minibatches=1", "update.epochs=2", "update.token_budget=60", "rollout.prompts=4"])
    learner = Learner(make("qwen3"), objectives.get("fspo"), config)
    before = [p.detach().clone() for p in learner.parameters]
    updates = learner.learn(sampled_answers(0, [1.0, -0.5, -0.5] * GROUPS), 1)
    assert [u.skipped for u in updates] == [True, True]
    assert all(torch.equal(p, old) for p, old in zip(learner.parameters, before, strict=True))


# --- the limit on the norm of a gradient ------------------------------------------------------------------------------


norms = st.lists(st.floats(0.01, 100), min_size=1, max_size=100)


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


# --- the measured direction: 1 where nothing is clipped, above its bound, and without a trace in training ------------


def cosines(small: list[str], folder: Path, *overrides: str) -> list[Cosine]:
    train(read(None, [*small, "log.cosine=1", *overrides]), folder)
    return read_lines(folder, Cosine)


CASES: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in objectives.names()]
WIDE = {"fspo": {"c_low": 100.0, "c_high": 100.0}, "rloo": {"clip_low": 0.999, "clip_high": 1e6}}  # clip nothing
CASES += [("fspo", {"drift": "kl"}), ("fspo", LEARNT), *WIDE.items()]
SUMS = ("fspo", "rloo", "reinforce", "dr_grpo", "luspo")  # on-policy the true update, up to a constant


@pytest.mark.parametrize(("name", "parameters"), CASES, ids=str)
def test_the_cosine_of_the_loss_itself_and_its_bound_on_a_linear_model(name: str, parameters: dict[str, Any]) -> None:
    """Log-probs that are linear in few parameters, with |S| of up to 0.3."""
    objective, measured = objectives.get(name, **parameters), 0
    for seed in range(40):
        batch = random_batch(seed, rows=24, positions=12, most=0.3)
        features = torch.randn(24, 12, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        w = torch.zeros(3, dtype=torch.float64, requires_grad=True)
        inputs = (batch.logprobs + features @ w, batch.old_logprobs, batch.advantages, batch.mask)
        direction = measure_direction(objective, inputs, None, 1, [w], 4)
        if direction is not None:
            assert direction.bound <= direction.measured + 1e-9, seed
            S = torch.where(batch.mask, inputs[0] - inputs[1], 0.0).sum(-1)
            (true,) = torch.autograd.grad((S.exp() * batch.advantages).mean(), w, retain_graph=True)
            (ours,) = torch.autograd.grad(-objective(*inputs, staleness=1).loss, w)
            assert direction.measured == pytest.approx(float(torch.cosine_similarity(true, ours, 0)), abs=1e-9), seed
            assert WIDE.get(name) != parameters or direction.measured == pytest.approx(1, abs=1e-12)
            measured += 1
        assert w.grad is None
    assert measured > 20
    now = batch.logprobs + features @ w
    if name in (*SUMS, "grpo"):
        direction = measure_direction(objective, (now, now.detach(), batch.advantages, batch.mask), None, 0, [w], 4)
        assert direction is not None
        if name == "grpo":  # divides by the length, which turns the update
            assert 0 < direction.measured < 0.9999
        else:
            assert (direction.measured, direction.bound_tight) == pytest.approx((1, 1), abs=1e-12)
            assert direction.bound == pytest.approx(1, abs=1e-6)
    zero = (now, batch.old_logprobs, torch.zeros_like(batch.advantages), batch.mask)
    assert measure_direction(objective, zero, None, 1, [w], 4) is None, "an update without a direction"


@pytest.mark.parametrize("objective", ["{name: fspo, drift: kl}", "grpo"])
def test_training_is_the_same_to_the_bit(small: list[str], tmp_path: Path, objective: str) -> None:
    """Several micro-batches too: their first is measured, with the band of the whole minibatch."""
    options = [f"objective={objective}", "update.token_budget=120", "rollout.group=8", "steps=4"]
    train(read(None, [*small, *options]), tmp_path / "plain")
    assert cosines(small, tmp_path / "measured", *options)
    plain, measured = fingerprint(tmp_path / "plain"), fingerprint(tmp_path / "measured")
    del measured["cosine.jsonl"]
    assert plain == measured
