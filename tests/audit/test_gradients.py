"""Rows whose advantage is 0 have no gradient that clipping could remove: no clip rate counts them."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import fspo
from helpers.simulated_answers import answers


def with_failures(frame: pl.DataFrame, longest: int) -> pl.DataFrame:
    """Every answer longer than that fails in groups that fail throughout: no advantage, and nothing clipped."""
    flat = pl.col("length") > longest
    return frame.with_columns(
        advantage=pl.when(flat).then(0.0).otherwise("advantage"), accepted=pl.when(flat).then(1.0).otherwise("accepted")
    )


def test_rows_without_advantage_are_in_no_clip_rate() -> None:
    """Half of the rows have no gradient; about clipping the audit says what it says of the other half alone."""
    frame = answers(6000, steps=20)
    flat = answers(6000, steps=20, seed=1).with_columns(advantage=pl.lit(0.0), accepted=pl.lit(1.0))
    mixed = pl.concat([frame, flat])
    result, alone = (fspo.audit(f, clip_rate=0.08, methods="all") for f in (mixed, frame))
    assert "6,000 rows have advantage 0 and no gradient to clip: they are left out of clip rates." in result.notes
    assert not any("advantage 0" in note for note in alone.notes)
    assert result.own == alone.own
    for ours, theirs in zip(result.methods, alone.methods, strict=True):
        assert (ours.report is None) == (theirs.report is None), ours.name
        if ours.report is not None and theirs.report is not None:
            assert [b.count for b in ours.report.bins] == [b.count for b in theirs.report.bins], ours.name
            assert ours.report.clip_rate == pytest.approx(0.08, abs=1e-3), ours.name
    for ours_, theirs_ in zip(result.spans, alone.spans, strict=True):
        assert ours_.count == 2 * theirs_.count
        assert (ours_.clip_rate, ours_.interval) == (theirs_.clip_rate, theirs_.interval)
        assert ours_.mu != theirs_.mu
    band = result.recommendation
    assert band is not None
    L, S, A = (frame[name].to_numpy() for name in ("length", "log_ratio", "advantage"))
    assert np.mean((A > 0) & (band.mu * L + band.c_high * L**band.exponent < S)) == pytest.approx(0.04, abs=5e-4)
    # The model of S, the ESS and the lengths are of all rows.
    law = fspo.fairness.scaling_law(mixed["log_ratio"].to_numpy(), mixed["length"].to_numpy())
    assert result.law is not None
    assert result.law.interval == pytest.approx(law.interval, rel=1e-9)
    assert sum(row.count for row in result.lengths) == 12_000
    assert sum(row.gradient or 0 for row in result.lengths) == pytest.approx(1)


def test_failures_of_long_answers_do_not_look_fair() -> None:
    frame = with_failures(answers(8000), 1000)
    result, by = fspo.audit(frame), fspo.audit(frame, by="task")
    pulls = frame.filter(pl.col("advantage") != 0)
    for report, of_rows in (
        (result.own, fspo.fairness.measure(pulls["length"], pulls["accepted"])),
        (by.attribute, fspo.fairness.measure(pulls["length"], pulls["accepted"], by=pulls["task"].to_numpy())),
    ):
        assert report is not None
        assert report.clip_rate == pytest.approx(of_rows.clip_rate, rel=1e-12)
        assert [b.count for b in report.bins] == [b.count for b in of_rows.bins]
        assert [b.clip_rate for b in report.bins] == pytest.approx([b.clip_rate for b in of_rows.bins], rel=1e-9)
    ruled = fspo.audit(frame.drop("accepted"), rule="gspo:clip_low=3e-4,clip_high=4e-4").own
    assert ruled is not None
    assert result.own is not None
    assert ruled.clip_rate == pytest.approx(result.own.clip_rate, abs=1e-3)
    assert [b.count for b in ruled.bins] == [b.count for b in result.own.bins]


def test_a_soft_rule_that_bends_rows_without_gradient() -> None:
    """A share that the rule left of nothing is not counted."""
    frame = answers(3000)
    flat = frame.with_columns(advantage=pl.lit(0.0), accepted=pl.lit(0.5))
    assert fspo.audit(pl.concat([frame, flat])).own == fspo.audit(frame).own


@pytest.mark.parametrize("rule", [None, "gspo"])
def test_no_row_has_an_advantage(rule: str | None) -> None:
    frame = answers(500, steps=10).with_columns(advantage=pl.lit(0.0))
    result = fspo.audit(frame if rule is None else frame.drop("accepted"), by="task", rule=rule)
    assert any(note.startswith("Every advantage is exactly 0: no answer has a gradient") for note in result.notes)
    assert result.own is None
    assert result.attribute is None
    assert not result.methods
    assert result.recommendation is None
    assert result.law is not None
    assert all(span.clip_rate is None and span.mu is not None for span in result.spans)
    assert result.verdict.startswith("cannot tell")
