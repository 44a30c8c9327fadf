"""The run's own band and other methods' bands at its clip rate: asked of the objectives, as the audit asks them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml

from fspo import objectives
from fspo.objectives import OBJECTIVES
from fspo.report.clipping import own_rule, rules_at
from fspo.report.report_run import ReportRun, load
from fspo.report.run_page import write
from helpers.custom_objective import Cubic, Torchbound
from helpers.htmlpage import checked
from helpers.synthetic import change_rows, make_run, rewrite, summary_of


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(OBJECTIVES, "_classes", dict(OBJECTIVES._classes))


def level_of(run: ReportRun) -> tuple[float, float, float]:
    """mu, c_low and c_high of a band mu L - c_low sqrt(L) .. mu L + c_high sqrt(L), from its bounds at four lengths."""
    L = np.array([1.0, 4.0, 100.0, 10_000.0])
    rule = own_rule(run)
    assert rule is not None
    low, high = rule.bounds(L)
    terms = np.stack([L, np.sqrt(L)], axis=1)
    (mu, minus_c_low), *_ = np.linalg.lstsq(terms, low, rcond=None)
    (same_mu, c_high), *_ = np.linalg.lstsq(terms, high, rcond=None)
    assert same_mu == pytest.approx(mu)
    assert [terms @ (mu, minus_c_low), terms @ (mu, c_high)] == [pytest.approx(low), pytest.approx(high)]
    return float(mu), -float(minus_c_low), float(c_high)


def configure(folder: Path, objective: dict[str, Any]) -> ReportRun:
    (folder / "config.yaml").write_text(yaml.safe_dump({"objective": objective}))
    return load(folder)


def test_the_band_comes_from_the_last_metrics_or_the_configuration(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", steps=4)
    run = load(folder)
    assert level_of(run) == pytest.approx((run.metrics[-1].drift, 0.03, 0.03))
    other = {"drift": -0.001, "c_low": 0.02, "c_high": 0.05}
    rewrite(folder, [line.model_copy(update=other) for line in run.metrics])
    assert level_of(load(folder)) == pytest.approx((-0.001, 0.02, 0.05))
    learnt = configure(folder, {"name": "fspo", "clip_rate": 0.1, "drift": "bounded"})
    assert level_of(learnt) == pytest.approx((-0.001, 0.02, 0.05))
    assert "fspo (c_low = 0.02, c_high = 0.05" in checked(write(folder)).text
    unrecorded = dict.fromkeys(other)  # as an engine writes them that does not record the band
    rewrite(folder, [line.model_copy(update=unrecorded) for line in run.metrics])
    run = configure(folder, {"name": "fspo", "c_low": 0.03, "c_high": 0.03, "drift": "kl"})
    assert level_of(run) == pytest.approx((summary_of(folder).last_responses.mu, 0.03, 0.03))


@pytest.mark.usefixtures("registry")
def test_an_error_in_an_objective_of_a_user_stops_no_page(tmp_path: Path) -> None:
    objectives.register(Torchbound)
    folder = make_run(tmp_path / "run", steps=5)
    configure(folder, {"name": "torchbound"})
    assert "The run's own range is not drawn" in checked(write(folder)).text


@pytest.mark.usefixtures("registry")
def test_a_new_objective_is_drawn_if_it_has_a_band(tmp_path: Path) -> None:
    objectives.register(Cubic)
    folder = make_run(tmp_path / "run", steps=5)
    run = configure(folder, {"name": "cubic", "clip_high": 0.25})
    rule = own_rule(run)
    assert rule is not None
    low, high = rule.bounds(np.array([1.0, 8.0]))
    assert high == pytest.approx([0.25 - 1e-4, 0.5 - 8e-4])
    assert low == pytest.approx([-0.5 - 1e-4, -1.0 - 8e-4])
    text = checked(write(folder)).text
    assert "cubic, the run's band" in text
    assert "the run's range, cubic (clip_high = 0.25)" in text
    configure(folder, {"name": "grpo"})
    text = checked(write(folder)).text
    assert "the run's band" not in text
    assert "The run's own range is not drawn: its objective has no band on S" in text


@pytest.mark.parametrize(
    "objective",
    [{"name": "foreign_module:Objective"}, {"name": "nowhere"}, {"name": 7}, {"name": "fspo", "c_dual": 0.1}, {1: 2}],
)
def test_an_objective_that_is_not_known_here_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, objective: dict[Any, Any]
) -> None:
    (tmp_path / "foreign_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = make_run(tmp_path / "run", steps=3)
    assert own_rule(configure(folder, objective)) is None
    assert "or is not installed here (--trust imports it)" in checked(write(folder)).text
    assert "foreign_module" not in sys.modules


def test_log_ratios_that_no_range_can_hold_leave_a_note(tmp_path: Path) -> None:
    """Of a policy that has collapsed: exp(S) is beyond every float."""
    folder = change_rows(make_run(tmp_path / "run", steps=3), log_ratio=pl.col("log_ratio") * 1e99)
    assert "fixed range has no finite range for such log-ratios" in checked(write(folder)).text


# --- other ranges on the same answers ---


def test_other_ranges_clip_the_same_share_and_other_lengths(tmp_path: Path) -> None:
    summary = summary_of(make_run(tmp_path / "run", steps=40, answers=128))
    rate = summary.clip_rate
    assert rate is not None
    reports = {rule.name: rule.report(summary) for rule in rules_at(summary, rate)[0]}
    for report in reports.values():
        assert report.clip_rate == pytest.approx(rate, abs=1e-3)
    first, last = ({name: report.bins[k].clip_rate for name, report in reports.items()} for k in (0, -1))
    assert first["gspo"] > 2 * last["gspo"]
    assert last["rloo"] > 2 * first["rloo"]
    assert reports["fspo"].flatness < min(reports["gspo"].flatness, reports["rloo"].flatness) / 2
    labels = [objectives.get_class(name).label for name in reports]
    assert rules_at(summary, 0.9) == ([], [f"{label} cannot clip 90.0% with any range." for label in labels])
