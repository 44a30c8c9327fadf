"""What an audit says, against the library's own measures of the same rows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import fspo
from fspo.audits.gather import RowSample
from fspo.text import escape
from helpers.simulated_answers import answers, run_folder


@pytest.mark.parametrize(("seed", "bins"), [(0, 8), (1, 8), (2, 5), (3, 3)])
def test_a_run_folder_equals_measure_on_the_same_rows(tmp_path: Path, seed: int, bins: int) -> None:
    rows = run_folder(tmp_path, seed=100 * seed)
    moved = rows.filter("off_policy")
    report = fspo.fairness.measure(moved["length"].to_numpy(), moved["accepted"].to_numpy(), bins)
    result = fspo.audit(tmp_path, bins=bins)
    assert result.on_policy == rows.height - moved.height
    assert result.own is not None
    for ours, theirs in zip(result.own.bins, report.bins, strict=True):
        assert (ours.label, ours.count) == (theirs.label, theirs.count)
        assert ours.acceptance == pytest.approx(theirs.acceptance, rel=1e-12)
        assert ours.interval == pytest.approx(theirs.interval, rel=1e-12)
    assert result.own.lre == pytest.approx(report.lre, rel=1e-9)
    assert result.own.flatness == pytest.approx(report.flatness, rel=1e-9)
    law = fspo.fairness.scaling_law(moved["log_ratio"].to_numpy(), moved["length"].to_numpy())
    assert result.law is not None
    assert result.law.interval == pytest.approx(law.interval, rel=1e-6)
    assert result.law.mu_interval == pytest.approx(law.mu_interval, rel=1e-6)
    assert result.law.scale_interval == pytest.approx(law.scale_interval, rel=1e-6)
    assert sum(r.count for r in result.lengths) == rows.height


def test_a_large_file_is_sampled_and_its_own_rates_stay_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowSample.__init__, "__defaults__", (2000, 1 << 22))
    frame = answers(30_000)
    result = fspo.audit(frame)
    assert 1000 <= result.sampled <= 2000
    assert "1 in 15 rows" in " ".join(result.notes)
    report = fspo.fairness.measure(frame["length"].to_numpy(), frame["accepted"].to_numpy())
    assert result.own is not None
    assert [b.acceptance for b in result.own.bins] == pytest.approx([b.acceptance for b in report.bins], rel=1e-12)
    law = fspo.fairness.scaling_law(frame["log_ratio"].to_numpy(), frame["length"].to_numpy())
    assert result.law is not None
    assert result.law.exponent == pytest.approx(law.exponent, rel=1e-9)
    low, high = result.law.interval
    assert high - low == pytest.approx(law.interval[1] - law.interval[0], rel=0.15)


def test_a_sample_is_uniform_however_the_rows_arrive() -> None:
    """Each row is kept with the same probability, in batches of any size, and tokens stay with their rows."""
    hits = np.zeros(1000)
    for seed in range(400):
        sample = RowSample(None, rows=100)
        sample._rng = np.random.default_rng(seed)
        for part in np.split(np.arange(1000), [7, 8, 300, 950]):
            lengths = part % 3 + 1
            sample.add({"length": lengths, "row": part}, np.repeat(part, lengths))
        columns, tokens = sample.result()
        assert tokens is not None
        assert (tokens == np.repeat(columns["row"], columns["length"])).all()
        assert len(columns["row"]) <= 100
        hits[columns["row"]] += 1
    # 400 draws at a rate of 1/16: 25 ± 4.8
    assert hits.mean() == pytest.approx(25, rel=0.05)
    for counted in np.split(hits, [7, 8, 300, 950]):
        assert abs(counted.mean() - 25) < 5 * 4.84 / np.sqrt(len(counted))
    assert hits.std() == pytest.approx(4.84, rel=0.15)


def test_by_a_column_equals_measure() -> None:
    frame = answers(2000)
    result = fspo.audit(frame, by="task")
    report = fspo.fairness.measure(frame["length"], frame["accepted"], by=frame["task"].to_numpy().astype(object))
    assert result.attribute is not None
    assert result.attribute.attribute == "task"
    assert [b.label for b in result.attribute.bins] == ["add", "count", "sort"]
    assert [b.interval for b in result.attribute.bins] == [b.interval for b in report.bins]
    assert {m.report.attribute for m in result.methods if m.report} == {"task"}
    numeric = fspo.audit(frame, by="advantage", bins=4)
    assert numeric.attribute is not None
    assert len(numeric.attribute.bins) == 4


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


def test_on_policy_rows_are_left_out() -> None:
    frame = answers(900)
    still = frame.with_columns(log_ratio=pl.lit(0.0))
    result = fspo.audit(pl.concat([frame, still]))
    alone = fspo.audit(frame)
    assert result.own == alone.own
    assert result.on_policy == 900


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
    assert result.own is not None
    assert result.own.clip_rate == pytest.approx(1 - rows["accepted"].to_numpy().mean(), rel=1e-9)
    some = fspo.audit(rows.with_columns(off_policy=pl.int_range(1200) < 600))
    assert some.on_policy == 600
    assert some.own == fspo.audit(frame.head(600)).own
    empty = fspo.audit(rows.with_columns(off_policy=pl.lit(None, pl.Boolean)))
    assert empty.on_policy == 300


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


def test_a_run_that_does_not_move_says_why() -> None:
    still = {"length": list(range(5, 65)), "log_ratio": [0.0] * 60}
    assert "all updates are on-policy" in str(fspo.audit(still))
    empty = {"log_ratio": pl.Series([None] * 60, dtype=pl.Float64), "advantage": [0.0] * 60}
    assert any("The column of log-ratios is empty" in note for note in fspo.audit(still | empty).notes)
    assert "optimiser step per rollout, and advantages." in str(fspo.audit(still | {"advantage": [0.0] * 60}))


def test_data_is_named_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_folder(Path("runs/mine"))
    for name in "ab":
        answers(200).write_parquet(f"{name}.parquet")
    several = (["a.parquet", "b.parquet"], "a.parquet and 1 more")
    for data, name in (("runs/mine", "runs/mine"), ("*.parquet", "*.parquet"), several, (answers(200), "the frame")):
        result = fspo.audit(data)
        assert result.name == name
        assert str(result).startswith(f"{name}: {result.rows:,} rows\n\n{result.headline[:40]}")


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


# --- rows whose advantage is 0 have no gradient that clipping could remove --------------------------------------------


def test_rows_without_advantage_are_in_no_clip_rate() -> None:
    """Half of the rows have no gradient; about clipping the audit says what it says of the other half alone."""
    frame = answers(6000)
    flat = answers(6000, seed=1).with_columns(advantage=pl.lit(0.0), accepted=pl.lit(0.5))  # of nothing
    mixed = pl.concat([frame, flat])
    result, alone = (fspo.audit(f, clip_rate=0.08, methods="all") for f in (mixed, frame))
    assert "6,000 rows have advantage 0 and no gradient to clip: they are left out of clip rates." in result.notes
    assert not any("advantage 0" in note for note in alone.notes)
    assert result.own == alone.own
    assert fspo.audit(mixed, by="task").attribute == fspo.audit(frame, by="task").attribute
    for ours, theirs in zip(result.methods, alone.methods, strict=True):
        assert (ours.report is None) == (theirs.report is None), ours.name
        if ours.report is not None and theirs.report is not None:
            assert [b.count for b in ours.report.bins] == [b.count for b in theirs.report.bins], ours.name
            assert ours.report.clip_rate == pytest.approx(0.08, abs=1e-3), ours.name
    band = result.recommendation
    assert band is not None
    L, S, A = (frame[name].to_numpy() for name in ("length", "log_ratio", "advantage"))
    assert np.mean((A > 0) & (band.mu * L + band.c_high * L**band.exponent < S)) == pytest.approx(0.04, abs=5e-4)
    # The model of S and the lengths are of all rows.
    law = fspo.fairness.scaling_law(mixed["log_ratio"].to_numpy(), mixed["length"].to_numpy())
    assert result.law is not None
    assert result.law.interval == pytest.approx(law.interval, rel=1e-9)
    assert sum(row.count for row in result.lengths) == 12_000


@pytest.mark.parametrize("rule", [None, "gspo"])
def test_no_row_has_an_advantage(rule: str | None) -> None:
    frame = answers(500).with_columns(advantage=pl.lit(0.0))
    result = fspo.audit(frame if rule is None else frame.drop("accepted"), by="task", rule=rule)
    assert any(note.startswith("Every advantage is exactly 0: no answer has a gradient") for note in result.notes)
    assert result.own is None
    assert result.attribute is None
    assert not result.methods
    assert result.recommendation is None
    assert result.law is not None
    assert result.verdict.startswith("cannot tell")
