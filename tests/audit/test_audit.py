"""What an audit says, against the library's own measures of the same rows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fspo
from fspo import objectives
from fspo.audits import columns
from fspo.audits.rules import parse_rule
from fspo.objectives.clipping import surrogate_accepted
from fspo.text import escape
from helpers.custom_objective import Banded, Mine, Scaled
from helpers.simulated_answers import answers, known, run_folder, token_answers


@pytest.mark.parametrize(("seed", "bins"), [(0, 8), (2, 5), (3, 3)])
def test_a_run_folder_equals_measure_on_the_same_rows(tmp_path: Path, seed: int, bins: int) -> None:
    rows = run_folder(tmp_path, seed=100 * seed)
    moved = rows.filter("off_policy")
    report = fspo.fairness.measure(moved["length"].to_numpy(), moved["accepted"].to_numpy(), bins)
    result = fspo.audit(tmp_path, bins=bins)
    assert result.on_policy == rows.height - moved.height
    assert known(result.own).bins == report.bins
    assert known(result.own).lre == pytest.approx(report.lre, rel=1e-9)
    assert known(result.own).flatness == pytest.approx(report.flatness, rel=1e-9)
    assert result.law == fspo.fairness.scaling_law(moved["log_ratio"].to_numpy(), moved["length"].to_numpy())
    assert sum(r.count for r in result.lengths) == rows.height


@pytest.mark.parametrize("suffix", ["parquet", "csv"])  # which states its number of rows, and which does not
def test_a_large_file_is_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    frame = answers(30_000)
    frame.write_parquet(tmp_path / "a.parquet", row_group_size=999)
    frame.write_csv(tmp_path / "a.csv")
    whole = fspo.audit(frame)
    monkeypatch.setattr(columns, "MOST", 5000)
    result = fspo.audit(tmp_path / f"a.{suffix}")
    assert result.rows == 30_000
    assert result.sampled == pytest.approx(5000, rel=0.02)
    assert "All figures are from a random 1 in 6 rows." in result.notes
    for ours, exact in zip(known(result.own).bins, known(whole.own).bins, strict=True):
        assert abs(ours.clip_rate - exact.clip_rate) < ours.interval[1] - ours.interval[0]
    low, high = known(result.law).interval
    assert low < known(whole.law).exponent < high


def test_a_sample_is_uniform() -> None:
    hits, rng = np.zeros(100), np.random.default_rng(0)
    for _ in range(4000):
        hits[columns._one_of_each(8, 100, rng)] += 1
    assert np.abs(hits - 500).max() < 5 * np.sqrt(500 * 7 / 8)  # standard errors


def test_by_a_column_equals_measure() -> None:
    frame = answers(2000)
    result = fspo.audit(frame, by="task")
    report = fspo.fairness.measure(frame["length"], frame["accepted"], by=frame["task"].to_numpy().astype(object))
    by_task = known(result.attribute)
    assert by_task.attribute == "task"
    assert [b.label for b in by_task.bins] == ["add", "count", "sort"]
    assert by_task.bins == report.bins
    assert len(known(fspo.audit(frame, by="advantage", bins=4).attribute).bins) == 4


def test_verdicts() -> None:
    frame = answers(20_000)
    fair = frame.with_columns(accepted=pl.Series(np.random.default_rng(99).random(20_000) > 0.02).cast(pl.Float64))
    assert fspo.audit(fair).verdict.startswith("fair")
    assert fspo.audit(fair.head(400)).verdict.startswith("cannot tell: the LRE is between")
    few = fspo.audit(fair.head(100).with_columns(accepted=pl.Series([0.0] * 5 + [1.0] * 95)))
    assert few.verdict.startswith("cannot tell: the bin")
    assert all(b["clip_rate"] is None for b in few.to_dict()["own"]["bins"] if b["count"] < 30)
    tiny = fspo.audit(frame.head(12))
    assert tiny.law is None
    assert tiny.recommendation is None
    assert "cannot tell from 12 rows" in str(tiny)
    same = fspo.audit(frame.with_columns(length=pl.lit(7)), clip_rate=0.1)
    assert "all rows are in the bin 7 of length" in same.verdict


# --- rows on which clipping cannot act --------------------------------------------------------------------------------


@pytest.mark.parametrize("column", [True, False], ids=["with off_policy", "without"])
def test_rounding_between_two_forward_passes_is_on_policy(tmp_path: Path, column: bool) -> None:
    """The first update of another engine has a log-ratio of about 1e-6, which nothing can clip."""
    run_folder(tmp_path)
    exact = fspo.audit(tmp_path)
    for k, path in enumerate(sorted((tmp_path / "records").iterdir())):
        table = pl.read_parquet(path)
        noise = pl.Series(1e-7 * np.random.default_rng(k).standard_normal(table.height)) * pl.col("length").sqrt()
        table = table.with_columns(pl.col("log_ratio") + noise)
        (table if column else table.drop("off_policy")).write_parquet(path)
    result = fspo.audit(tmp_path)
    assert result.on_policy == exact.on_policy > 0
    assert result.own == exact.own
    assert "on-policy rows (log-ratio 0) are left out" in str(result)


def test_a_column_says_what_is_off_policy() -> None:
    """Where there is one it decides, whatever S is: an update that moved the policy may leave some S at 0."""
    frame = answers(900)
    unmoved = answers(300, seed=1).with_columns(log_ratio=pl.lit(0.0), accepted=pl.lit(1.0))
    rows = pl.concat([frame, unmoved])
    result = fspo.audit(rows.with_columns(off_policy=pl.lit(True)))
    assert result.on_policy == 0
    assert known(result.own).clip_rate == pytest.approx(1 - rows["accepted"].to_numpy().mean(), rel=1e-9)
    some = fspo.audit(rows.with_columns(off_policy=pl.int_range(1200) < 600))
    assert some.on_policy == 600
    assert some.own == fspo.audit(frame.head(600)).own
    empty = fspo.audit(rows.with_columns(off_policy=pl.lit(None, pl.Boolean)))
    assert (empty.on_policy, empty.own) == (300, fspo.audit(frame).own)


def test_a_run_that_does_not_move_says_why() -> None:
    still = {"length": list(range(5, 65)), "log_ratio": [0.0] * 60}
    assert "all updates are on-policy" in str(fspo.audit(still))
    empty = {"log_ratio": pl.Series([None] * 60, dtype=pl.Float64), "advantage": [0.0] * 60}
    assert any("The column of log-ratios is empty" in note for note in fspo.audit(still | empty).notes)
    assert "optimiser step per rollout, and advantages." in str(fspo.audit(still | {"advantage": [0.0] * 60}))


def test_rows_without_advantage_are_in_no_clip_rate() -> None:
    """Half of the rows have no gradient; about clipping the audit says what it says of the other half alone."""
    frame = answers(6000)
    flat = answers(6000, seed=1).with_columns(advantage=pl.lit(0.0), accepted=pl.lit(0.5))  # of nothing
    mixed = pl.concat([frame, flat])
    result, alone = (fspo.audit(f, clip_rate=0.08, by="task") for f in (mixed, frame))
    assert "6,000 rows have advantage 0 and no gradient to clip: they are left out of clip rates." in result.notes
    assert not any("advantage 0" in note for note in alone.notes)
    assert (result.own, result.attribute) == (alone.own, alone.attribute)
    assert known(result.fixed).clip_rate == pytest.approx(0.08, abs=1e-3)
    band = known(result.recommendation)
    L, S, A = (frame[name].to_numpy() for name in ("length", "log_ratio", "advantage"))
    assert np.mean((A > 0) & (band.mu * L + band.c_high * L**band.exponent < S)) == pytest.approx(0.04, abs=5e-4)
    # The model of S and the lengths are of all rows.
    assert result.law == fspo.fairness.scaling_law(mixed["log_ratio"].to_numpy(), mixed["length"].to_numpy())
    assert sum(row.count for row in result.lengths) == 12_000


@pytest.mark.parametrize("rule", [None, "gspo"])
def test_no_row_has_an_advantage(rule: str | None) -> None:
    frame = answers(500).with_columns(advantage=pl.lit(0.0))
    result = fspo.audit(frame if rule is None else frame.drop("accepted"), by="task", rule=rule)
    assert any(note.startswith("Every advantage is exactly 0: no answer has a gradient") for note in result.notes)
    assert (result.own, result.attribute, result.fixed, result.recommendation) == (None, None, None, None)
    assert result.law is not None
    assert result.verdict.startswith("cannot tell")


# --- lengths, names, files --------------------------------------------------------------------------------------------


def test_reward_and_truncation_by_length() -> None:
    frame = answers(3000)
    last = fspo.audit(frame).lengths[-1]
    long = frame.filter(pl.col("length") >= int(last.label.split("–")[0]))
    assert last.truncated == pytest.approx(long["truncated"].mean())
    assert last.reward == pytest.approx(long["reward"].mean())
    unscored = frame.with_columns(reward=pl.when(pl.col("length") % 2 == 0).then("reward"))
    scored = long.filter(pl.col("length") % 2 == 0)
    assert fspo.audit(unscored).lengths[-1].reward == pytest.approx(scored["reward"].mean())
    assert fspo.audit(unscored.with_columns(pl.col("reward").fill_null(float("nan")))) == fspo.audit(unscored)


def test_json_and_page(tmp_path: Path) -> None:
    """Names and values of the data are shown, and not obeyed."""
    nasty = '<script>alert("x")</script>\x1b[31m'
    frame = answers(2000).with_columns(
        pl.when(pl.col("task") == "add").then(pl.lit(nasty)).otherwise("task").alias(nasty)
    )
    path = tmp_path / "<b>.parquet"
    frame.write_parquet(path)
    result = fspo.audit(path, by=nasty)
    result.write_html(tmp_path / "a.html")
    result.write_json(tmp_path / "a.json")
    text = (tmp_path / "a.html").read_text()
    assert "<script>alert" not in text
    assert "<h1>" + escape(str(path)) + "</h1>" in text
    assert not re.search(r"(src|href)=", text)
    assert text.count("<svg") == 2
    assert "\x1b" not in text
    assert "\x1b" not in str(result)
    assert json.loads((tmp_path / "a.json").read_text())["attribute"]["attribute"] == nasty


# --- rules ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["gspo:clip_low=3e-4,clip_high=4e-4", "luspo"])
def test_a_rule_gives_what_the_column_says(text: str) -> None:
    frame = answers(4000)
    by_column, by_rule = fspo.audit(frame), fspo.audit(frame.drop("accepted"), rule=text)
    assert by_rule.own_rule in text
    ours, theirs = ([b.acceptance for b in known(audit.own).bins] for audit in (by_column, by_rule))
    assert ours == pytest.approx(theirs, abs=1e-3)  # 3e-4 against log(1 - 3e-4)


def test_a_rule_that_clips_tokens() -> None:
    """Only the tokens of the rows on which clipping can act are given to it."""
    frame = token_answers(1500)
    still = frame.with_columns(old_logprobs="logprobs")
    result = fspo.audit(pl.concat([still, frame]), rule="grpo:clip_low=0.1,clip_high=0.1")
    ratio = frame.select(pl.col("logprobs") - pl.col("old_logprobs")).to_series().to_list()
    sign = np.sign(frame["advantage"].to_numpy())
    bounds = np.log([0.9, 1.1])
    clipped = [
        np.mean(np.array(r) > bounds[1] if s > 0 else np.array(r) < bounds[0]) for r, s in zip(ratio, sign, strict=True)
    ]
    assert result.on_policy == 1500
    assert known(result.own).clip_rate == pytest.approx(np.mean(clipped), rel=1e-9)


def test_a_users_objective_without_a_band_clips_what_its_band_would() -> None:
    """The same range, found by root search on the loss instead of by a quantile."""
    frame = answers(800)
    S, L, A = (frame[name].to_numpy().copy() for name in ("log_ratio", "length", "advantage"))
    rows = objectives.Responses(S, L.astype(float), np.sign(A))
    scaled, banded = (known(rule.at_clip_rate(rows, 0.1).objective) for rule in (Scaled(), Banded()))
    assert scaled.clip_parameters == pytest.approx(banded.clip_parameters, rel=0.01)


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
