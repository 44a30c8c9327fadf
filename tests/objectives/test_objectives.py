"""The definitions by hand, the defaults, the metrics, the registry and the sentences for bad input."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import fspo
from fspo.objectives import Objective, Totals
from helpers.batches import random_batch


def responses(*log_ratios: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Responses of four tokens with the given S: log-probs, old log-probs, mask."""
    l = torch.tensor(log_ratios, dtype=torch.float64).unsqueeze(-1).repeat(1, 4) / 4
    return l.requires_grad_(), torch.zeros_like(l), torch.ones_like(l, dtype=torch.bool)


def test_fspo_by_hand() -> None:
    """mu = -0.01, c = 0.03, L = 4: the band is -0.04 ± 0.06. Every token has its response's gradient, -w A / B."""
    logprobs, old, mask = responses(-0.2, -0.09, 0.01, 0.2)
    A = torch.tensor([-1.0, 1.0, 2.0, 3.0], dtype=torch.float64)
    out = fspo.objectives.FSPO(c_low=0.03, c_high=0.03, drift=-0.01, reference_length=1)(logprobs, old, A, mask)
    expected = [-math.exp(-0.1), math.exp(-0.09), 2 * math.exp(0.01), 3 * math.exp(0.02)]
    assert out.loss.item() == pytest.approx(-sum(expected) / 4, rel=1e-12)
    assert out.accepted.tolist() == [0, 1, 1, 0]
    (gradient,) = torch.autograd.grad(out.loss, logprobs)
    weights = torch.tensor([0, math.exp(-0.09), 2 * math.exp(0.01), 0], dtype=torch.float64)
    torch.testing.assert_close(gradient, -weights.unsqueeze(-1).repeat(1, 4) / 4, rtol=1e-12, atol=0)


def test_soft_objectives_report_the_share_that_survives() -> None:
    given = responses(4 * math.log(10.0))
    kept = {n: fspo.objectives.get(n)(*given[:2], torch.ones(1), given[2]).accepted.item() for n in ("cispo", "sapo")}
    gate = 1 / (1 + math.exp(-9))
    assert kept == pytest.approx({"cispo": 0.5, "sapo": 4 * gate * (1 - gate)})  # CISPO's weight is 5, the ratio 10


def test_answers_without_advantage_are_in_no_clip_rate() -> None:
    logprobs, old, mask = responses(2.0, 0.01, 2.0, 2.0)
    objective = fspo.objectives.get("fspo", drift="zero")
    A = torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    assert objective(logprobs, old, A, mask).metrics["clip_rate"] == 0.5
    assert objective(logprobs, old, 0 * A, mask).metrics["clip_rate"] == 0
    tokens = A[:, None] * torch.ones_like(logprobs)
    mask[3, -1] = False
    tokens[3, -1] = 1.0  # an advantage outside the answer is none
    by_token = fspo.objectives.get("grpo")(logprobs, old, tokens, mask)
    assert by_token.metrics["clip_rate"] == 0.5


def gradient(objective: Objective, length: int) -> float:
    """The size of the gradient with respect to a shift of all log-probs, at responses of one length."""
    logprobs = torch.zeros(4, length, dtype=torch.float64)
    shift = torch.zeros((), dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([1.0, 2.0, 0.5, 1.5], dtype=torch.float64)
    mask = torch.ones(4, length, dtype=torch.bool)
    objective(logprobs + shift, logprobs, advantages, mask, ref_logprobs=logprobs - 1.0).loss.backward()
    assert shift.grad is not None
    return float(shift.grad)


@pytest.mark.parametrize("name", ["fspo", "fspo_gate", "fspo_root", "length_family"])
def test_the_gradient_has_the_size_of_grpos(name: str) -> None:
    """So that a learning rate and a limit on the norm carry over."""
    for length in (3, 300):
        assert gradient(fspo.objectives.get(name), length) == pytest.approx(
            gradient(fspo.objectives.get("grpo"), length)
        )


@pytest.mark.parametrize("name", fspo.objectives.names())
def test_a_kl_coefficient_means_the_same_under_every_objective(name: str) -> None:
    """The penalty is a mean over tokens, at any length."""
    for length in (2, 200):
        with_kl = gradient(fspo.objectives.get(name, kl={"coef": 0.1, "kind": "k2"}), length)
        assert with_kl - gradient(fspo.objectives.get(name), length) == pytest.approx(0.1)


@pytest.mark.parametrize("name", fspo.objectives.names())
def test_on_policy_every_objective_gives_the_plain_policy_gradient(name: str) -> None:
    """At S = 0 nothing is clipped and each gradient is A grad log pi, up to the objective's own constant."""
    batch = random_batch(1)
    logprobs = batch.old_logprobs.clone().requires_grad_()
    out = fspo.objectives.get(name)(logprobs, batch.old_logprobs, batch.advantages, batch.mask)
    out.loss.backward()
    assert out.accepted.tolist() == [1] * len(batch.advantages)
    assert out.metrics["on_policy"] == 1
    assert out.metrics["ess"] == pytest.approx(1)
    assert logprobs.grad is not None
    per_row = logprobs.grad.sum(-1) / batch.mask.sum(-1)
    assert torch.equal(torch.sign(per_row), -torch.sign(batch.advantages))
    for shift, on_policy in ((1e-14, 1), (1e-3, 0)):  # rounding between two forward passes, and a move
        moved = fspo.objectives.get(name)(logprobs.detach() + shift, *batch.arguments()[1:])
        assert moved.metrics["on_policy"] == on_policy


@pytest.mark.parametrize("name", fspo.objectives.names())
def test_a_response_without_a_trained_token_counts_and_has_no_gradient(name: str) -> None:
    """As a truncated answer that is masked out: the others are weighted as if its advantage were 0."""
    batch = random_batch(7)
    masked_out = batch.mask.clone()
    masked_out[1] = False
    advantages = batch.advantages.clone()
    advantages[1] = math.nan
    logprobs = batch.logprobs.clone().requires_grad_()
    objective = fspo.objectives.get(name, kl={"coef": 0.1})
    out = objective(logprobs, batch.old_logprobs, advantages, masked_out, ref_logprobs=batch.ref_logprobs)
    out.loss.backward()
    assert torch.isfinite(out.loss)
    assert logprobs.grad is not None
    assert not logprobs.grad[1].any()
    assert torch.isfinite(logprobs.grad).all()
    assert out.metrics["empty"] == 1
    assert out.lengths[1] == 0
    kept = [i for i in range(len(advantages)) if i != 1]
    rest = [x[kept] for x in (batch.logprobs, batch.old_logprobs, advantages, batch.mask)]
    totals = Totals(len(advantages), float(masked_out.sum()), float(out.log_ratio.sum()))
    alone = objective(*rest, ref_logprobs=batch.ref_logprobs[kept], totals=totals)
    torch.testing.assert_close(out.loss.detach(), alone.loss)
    assert out.metrics["sigma"] == pytest.approx(alone.metrics["sigma"])


def test_a_batch_without_any_trained_token_has_loss_zero() -> None:
    logprobs = torch.zeros(2, 3, requires_grad=True)
    mask = torch.zeros(2, 3, dtype=torch.bool)
    for name in ("fspo", "grpo"):
        out = fspo.objectives.get(name)(logprobs, torch.zeros(2, 3), torch.ones(2), mask)
        assert float(out.loss) == 0
        assert out.metrics == {"empty": 2.0} | {
            k: v for k, v in out.metrics.items() if k in ("drift", "c_low", "c_high")
        }
    assert Totals.of(logprobs, logprobs, mask).tokens == 0


@pytest.mark.parametrize(
    ("rule", "weights", "outside"),
    [
        ({"level": "geometric", "low": 0.8, "high": 1.25}, [0, 1, 1, 0], [True, False, False, True]),  # of the mean
        (
            {"c": 0.35, "drift": -0.1},
            [0, 1, 1, 1],
            [True, False, False, False],
        ),  # of the sum
        ({"mode": "mask", "high": 2.0}, [0, 1, math.exp(0.2), math.exp(-0.6)], [True, False, False, False]),
        ({"mode": "truncate", "high": 2.0}, [2, 1, math.exp(0.2), math.exp(-0.6)], [True, False, False, False]),
    ],
)
def test_mismatch_drops_or_truncates(rule: dict[str, Any], weights: list[float], outside: list[bool]) -> None:
    d = torch.tensor([[0.5, 0.5], [0.1, -0.1], [float("nan"), 0.2], [-0.5, -0.1]])
    given, changed = fspo.objectives.Mismatch(**rule).weights(d, torch.zeros(4, 2), torch.ones(4, 2, dtype=torch.bool))
    assert given.tolist() == pytest.approx(weights)
    assert changed.tolist() == outside


def broken(key: str, change: Any) -> dict[str, Any]:
    batch = random_batch(0, rows=3, positions=5)
    values = dict(zip(("logprobs", "old_logprobs", "advantages", "mask"), batch.arguments(), strict=True))
    return values | {key: change(values[key])}


def put(value: float) -> Any:
    return lambda t: t.index_fill(0, torch.tensor(1), value)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (broken("logprobs", lambda t: t[0]), r"logprobs must have the shape \(B, T\)"),
        (broken("logprobs", lambda t: t.long()), "logprobs must be a floating-point tensor, not torch.int64"),
        (broken("logprobs", lambda t: t.tolist()), "logprobs must be a floating-point tensor, not list"),
        (broken("old_logprobs", lambda t: t[:, :2]), r"old_logprobs must have the shape of logprobs, \(3, 5\)"),
        (
            broken("advantages", lambda t: t.unsqueeze(-1)),
            r"shape \(3,\), not \(3, 1\); advantages.squeeze\(-1\) makes it",
        ),
        (broken("mask", lambda t: t.float()), "mask must be a bool tensor, not torch.float32"),
        (broken("mask", lambda t: t.long()), "mask must be a bool tensor, not torch.int64; mask.bool.. makes one"),
        (broken("logprobs", put(float("nan"))), "log-probs of row 1 hold NaN or inf inside the mask"),
        (broken("old_logprobs", put(float("-inf"))), "log-probs of row 1 hold NaN or inf inside the mask"),
        (broken("advantages", put(float("nan"))), "advantages of row 1 hold NaN or inf"),
    ],
)
def test_bad_input_is_one_clear_sentence(arguments: dict[str, Any], sentence: str) -> None:
    for name in ("fspo", "grpo"):
        with pytest.raises(ValueError, match=sentence) as error:
            fspo.objectives.get(name)(**arguments)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "parameters", "sentence"),
    [
        ("xyzzy", {}, "there is no objective 'xyzzy'; known: cispo"),
        ("fspo", {"c_hihg": 0.1}, "FSPO has no parameter 'c_hihg'; did you mean 'c_high'?"),
        ("fspo", {"drift": "bounded", "exponent": 0.6}, "needs the band.s exponent 0.5: its limit"),
        ("length_family", {"exponent": 0.5}, "LengthFamily has no parameter 'exponent'"),
        ("fspo", {"c_low": float("nan")}, "FSPO.c_low = nan"),
        ("grpo", {"kl": {"kind": "k3"}}, "needs the parameter 'coef'"),
        ("cispo", {"ratio_low": 6.0}, "ratio_low = 6.0 must be below ratio_high"),
        ("grpo", {"mismatch": {"level": "token", "c": 0.1}}, "the rule of c is about whole sequences"),
        ("grpo", {"mismatch": {"low": 4.0}}, "low = 4.0 must be below high = 3.0"),
        ("grpo", {"mismatch": {"mode": "truncate", "c": 0.1}}, "drops responses and has no weight to truncate"),
    ],
)
def test_bad_parameters_are_one_clear_sentence(name: str, parameters: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as error:
        fspo.objectives.get(name, **parameters)
    assert "\n" not in str(error.value)


def test_options_say_what_they_need() -> None:
    batch = random_batch(0)
    with pytest.raises(ValueError, match="the option kl needs ref_logprobs"):
        fspo.objectives.get("fspo", kl={"coef": 0.1})(*batch.arguments())
    with pytest.raises(ValueError, match="entropy must have the shape of logprobs"):
        fspo.objectives.get("fspo", entropy_coef=0.1)(*batch.arguments(), entropy=batch.entropy[:, :1])
    with pytest.raises(ValueError, match="these totals hold counts only"):
        fspo.objectives.get("fspo", drift="kl")(*batch.arguments(), totals=Totals(4, 20))
    with pytest.raises(ValueError, match=r"shape \(B,\), not one per token"):
        fspo.objectives.get("fspo")(batch.logprobs, batch.old_logprobs, batch.entropy, batch.mask)
    with pytest.raises(ValueError, match="keeps no state"):
        fspo.objectives.get("fspo").load_state_dict({"a": 1})
    fspo.objectives.get("fspo").load_state_dict(fspo.objectives.get("fspo").state_dict())


def test_registry() -> None:
    wanted = "fspo fspo_gate fspo_root length_family ppo grpo dapo dr_grpo cispo sapo gspo luspo"
    assert set(f"{wanted} gmpo vespo rloo reinforce dppo gpg clip_cov kl_cov".split()) == set(fspo.objectives.names())
    for name in fspo.objectives.names():
        objective = fspo.objectives.get(name)
        assert type(objective).model_validate(objective.model_dump()) == objective
        assert objective.summary
        assert objective.label
        assert all(f.description for f in type(objective).model_fields.values()), name


def test_a_loop_of_ones_own_is_warned_once_of_a_batch_that_is_clipped_nearly_as_a_whole(
    recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fspo.objectives.objective._warned", set())
    old, mask = -torch.ones(10, 4), torch.ones(10, 4, dtype=torch.bool)
    A = torch.tensor([-1.0] * 2 + [1.0] * 8)  # above the range, A > 0 is clipped
    objective = fspo.objectives.get("gspo")
    for rows, count in ((slice(0, 10), 0), (slice(1, 10), 1), (slice(1, 10), 1)):
        objective(old[rows] + 0.01, old[rows], A[rows], mask[rows])
        assert sum("of the gradients of a batch" in str(w.message) for w in recwarn) == count
