"""The first chart of a run's page: what it clipped by length, and what other ranges would have clipped."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from fspo import objectives
from fspo.fairness import FairnessReport
from fspo.report.panels.bands import clip_rate
from fspo.report.panels.same_answers import clipped_by
from fspo.report.report_run import load
from fspo.report.row_summary import RowSummary
from fspo.report.run_page import plots, write
from fspo.runs import rows
from helpers.htmlpage import checked
from helpers.synthetic import make_run

TITLE = "Clip rate by length, and other ranges on the same answers"


def summary_of(folder: Path) -> RowSummary:
    summary = load(folder).rows
    assert summary is not None
    return summary


def report_of(name: str, summary: RowSummary, rate: float) -> FairnessReport:
    found = clipped_by(name, summary, rate)
    assert isinstance(found, FairnessReport)
    return found


def test_other_ranges_clip_the_same_share_and_other_lengths(tmp_path: Path) -> None:
    summary = summary_of(make_run(tmp_path / "run", steps=40, answers=128))
    rate = clip_rate(summary)
    assert rate is not None
    found = {name: report_of(name, summary, rate) for name in objectives.LENGTH_LAWS}
    for report in found.values():
        assert report.clip_rate == pytest.approx(rate, abs=1e-3)
    first, last = ({name: report.bins[k].clip_rate for name, report in found.items()} for k in (0, -1))
    assert first["gspo"] > 2 * last["gspo"]
    assert last["rloo"] > 2 * first["rloo"]
    assert found["fspo"].flatness < min(found["gspo"].flatness, found["rloo"].flatness) / 2


@pytest.mark.parametrize(("rule", "others"), [("fspo", ("GSPO", "fixed range")), ("gspo", ("FSPO", "fixed range"))])
def test_it_is_the_first_chart_of_the_page(rule: str, others: tuple[str, ...], tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", steps=10, rule=rule)
    text = checked(write(folder)).text
    assert text.index(TITLE) < text.index("Held-out accuracy, start")
    caption = text[text.index("Highest minus lowest rate") :]
    places = [caption.index(label) for label in ("this run", *others)]
    assert places == sorted(places)
    assert next(plots([load(folder)])).title == TITLE


def test_a_run_that_clipped_nothing_has_every_range_at_ten_per_cent(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", steps=4)
    for path in rows.files(folder):
        table = pl.read_parquet(path)
        table.with_columns(accepted=pl.lit(1.0).cast(table.schema["accepted"])).write_parquet(path)
    text = checked(write(folder)).text
    assert "The run clipped only 0.0 %, so every range is set to clip 10.0 %." in text


def test_several_runs_and_runs_without_rows_have_no_such_chart(tmp_path: Path) -> None:
    both = [load(make_run(tmp_path / name, steps=2)) for name in ("a", "b")]
    assert TITLE not in [plot.title for plot in plots(both)]
    for path in rows.files(both[0].folder):
        path.unlink()
    assert "There are no rows of single answers yet." in checked(write(both[0].folder)).text
