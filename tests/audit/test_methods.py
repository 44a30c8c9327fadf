"""Every objective in the audit: those of the library, and those that a user brings."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fspo
from fspo import objectives
from fspo.audits.methods import Comparison, parse_rule
from fspo.objectives import OBJECTIVES
from fspo.objectives.clipping import surrogate_accepted
from helpers.custom_objective import Banded, Mine, Needy, Scaled
from helpers.simulated_answers import answers, token_answers


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(OBJECTIVES, "_classes", dict(OBJECTIVES._classes))


def compared(result: fspo.audits.Audit) -> dict[str, Comparison]:
    return {method.name: method for method in result.methods}


def test_methods_clip_what_the_library_clips() -> None:
    """The parameters chosen for each method, given to its objective on the same tokens: the same rate and bins."""
    frame = token_answers(1500)
    methods = compared(fspo.audit(frame, clip_rate=0.08, methods="all"))
    lengths = frame["logprobs"].list.len().to_numpy()
    mask = torch.arange(int(lengths.max()))[None] < torch.from_numpy(lengths.astype(int))[:, None]
    new, old = (torch.zeros(mask.shape, dtype=torch.float64) for _ in range(2))
    for name, target in (("logprobs", new), ("old_logprobs", old)):
        target[mask] = torch.from_numpy(frame[name].explode().to_numpy().copy())
    A = torch.from_numpy(frame["advantage"].to_numpy().copy())
    assert set(methods) == set(objectives.names())
    for name, method in methods.items():
        # no clip, or one that is not by the ratio alone; learnt online
        by_more = name in ("reinforce", "gpg", "dppo", "clip_cov", "kl_cov")
        if by_more or getattr(objectives.get(name), "clip_rate", None):
            continue
        assert method.report is not None, name
        out = objectives.get(name, **method.parameters)(new, old, A, mask)
        report = fspo.fairness.measure(lengths, out.accepted.clamp(0, 1))
        assert 1 - float(out.accepted.mean()) == pytest.approx(0.08, abs=2e-3), name
        ours = [b.clip_rate for b in method.report.bins]
        assert ours == pytest.approx([b.clip_rate for b in report.bins], abs=6e-3), name
    adaptive = methods["fspo_adaptive"]
    assert adaptive.report is not None
    assert adaptive.report.clip_rate == pytest.approx(0.08, abs=1e-3)


def test_methods_without_figures_have_a_note() -> None:
    methods = compared(fspo.audit(answers(500), methods="all"))
    assert methods["grpo"].note == "needs per-token log-probs"
    assert methods["reinforce"].note == "has no clip range to set"
    assert methods["gspo"].report is not None


def test_a_rate_that_no_range_reaches() -> None:
    """Half of the gradients push outwards: no range clips 60 % of them; a dual clip acts on the other side as well."""
    methods = compared(fspo.audit(token_answers(1500), clip_rate=0.6, methods="all"))
    for name in ("gspo", "rloo", "grpo", "gmpo"):
        assert methods[name].note == "cannot clip 60.0% with any range", name
    report = methods["fspo"].report
    assert report is not None
    assert report.clip_rate == pytest.approx(0.6, abs=1e-3)


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("frame", [answers(800), token_answers(300)], ids=["sums", "tokens"])
@pytest.mark.parametrize("known", [True, False], ids=["advantages", "no advantages"])
def test_objectives_of_a_user(frame: pl.DataFrame, known: bool) -> None:
    """One without a range gets a note and never a traceback; the others are compared like those of the library."""
    for cls in (Mine, Scaled, Banded, Needy):
        objectives.register(cls)
    result = fspo.audit(frame if known else frame.drop("advantage"), clip_rate=0.1, methods="all")
    methods = compared(result)
    assert methods["mine"].note == "has no clip range to set"
    assert methods["needy"].note == "Needy needs the parameter 'width': half-width of the range of S"
    scaled, banded = methods["scaled"].report, methods["banded"].report
    assert scaled is not None
    assert banded is not None
    assert banded.clip_rate == pytest.approx(0.1, abs=1e-3)
    row = 1.01 / min(b.count for b in banded.bins)  # the root search may put the outermost row on either side
    assert [b.clip_rate for b in scaled.bins] == pytest.approx([b.clip_rate for b in banded.bins], abs=row)
    width = methods["banded"].parameters["width"]
    assert methods["scaled"].parameters["width"] == pytest.approx(width, rel=0.01)
    assert "mine" in str(result)


@pytest.mark.parametrize("text", ["gspo:clip_low=3e-4,clip_high=4e-4", "gspo_token", "luspo"])
def test_a_rule_gives_what_the_column_says(text: str) -> None:
    frame = answers(4000)
    by_column, by_rule = fspo.audit(frame), fspo.audit(frame.drop("accepted"), rule=text)
    assert by_rule.own_rule in text
    assert by_column.own is not None
    assert by_rule.own is not None
    ours, theirs = ([b.acceptance for b in r.bins] for r in (by_column.own, by_rule.own))
    assert ours == pytest.approx(theirs, abs=1e-3)  # 3e-4 against log(1 - 3e-4)


RULES = {
    "gspo": objectives.get("gspo"),
    "gspo:": objectives.get("gspo"),
    "fspo: c_low = 0.03 , c_high=3e-2": objectives.get("fspo", c_low=0.03, c_high=0.03),
    "fspo:drift=kl,dual=null": objectives.get("fspo", drift="kl", dual=None),
    "helpers.custom_objective:Mine": Mine(),
    "helpers.custom_objective:Mine:width=0.2": Mine(width=0.2),
}


def test_rules_as_text() -> None:
    for text, rule in RULES.items():
        assert parse_rule(text) == rule, text


CHANGED: dict[str, dict[str, Any]] = {
    "fspo": {"c_low": 0.02, "c_high": 0.04, "drift": "kl", "dual": 1.5},
    "ppo": {"dual_clip": 1.5},
}
BY_MORE_THAN_RATIOS = ("dppo", "clip_cov", "kl_cov")
ACCEPTANCE = [objectives.get(name) for name in objectives.names() if name not in BY_MORE_THAN_RATIOS]
ACCEPTANCE += [objectives.get(name, **parameters) for name, parameters in CHANGED.items()]


@pytest.mark.parametrize("rule", ACCEPTANCE, ids=[f"{rule.name}-{i}" for i, rule in enumerate(ACCEPTANCE)])
@given(seed=st.integers(0, 10_000), sigma=st.sampled_from([1e-4, 0.02, 0.3, 5.0]))
def test_the_band_accepts_what_the_loss_accepts(rule: objectives.Objective, seed: int, sigma: float) -> None:
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 60, 40).astype(float)
    tokens = random.normal(0.1 * sigma, sigma, int(lengths.sum()))
    starts = np.cumsum(lengths.astype(int)) - lengths.astype(int)
    rows = objectives.Responses(
        np.add.reduceat(tokens, starts), lengths, random.choice([-1.0, 0.0, 1.0], 40), tokens=tokens
    )
    rows.sign[0] = 1.0
    np.testing.assert_allclose(objectives.accepted(rule, rows), surrogate_accepted(rule, rows), atol=1e-6)
