"""Every kind of page in a browser: no requests, no console messages, nothing cut off."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest

import fspo
from fspo.comparisons import figures as comparison
from fspo.report.run_page import write
from helpers.looks import PHONE, box_of, overflow, overlaps
from helpers.made_rows import METHODS, rows, suite
from helpers.simulated_answers import answers, run_folder
from helpers.synthetic import make_run

if TYPE_CHECKING:
    from helpers.looks import Show

HARM = "<script>window.harm='script'</script><img src=x onerror=\"window.harm='img'\">"


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run's folder, named as a user in the folder above would."""
    folder = tmp_path_factory.mktemp("audit")
    run_folder(folder / "runs" / "mine", n=400)
    before = Path.cwd()
    os.chdir(folder)
    try:
        fspo.audit("runs/mine").write_html("audit.html")
    finally:
        os.chdir(before)
    return folder / "audit.html"


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = suite(tuple(METHODS), ("sort", "add"))
    return comparison.write(rows(given, seeds=3), given, tmp_path_factory.mktemp("compare") / "page.html")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(make_run(tmp_path_factory.mktemp("runs") / "demo", steps=100, answers=48))


@pytest.fixture(scope="module")
def several(report: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several")
    other = make_run(folder / "a run with quite a long name <b>", steps=30, rule="gspo", seed=3)
    return write([report.parent, other], folder / "compare.html")


@pytest.fixture(scope="module", params=["report", "several", "audit", "compared"])
def page_file(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(request.param)
    return path


def test_everything_is_drawn(show: Show, page_file: Path) -> None:
    page = show(page_file)
    assert overflow(page) == 0
    assert overlaps(page) == []
    charts = page.locator("svg[role=img]")
    assert charts.count() >= 1
    for k in range(charts.count()):
        box = box_of(charts.nth(k))
        assert min(box["width"] - 200, box["height"] - 120) > 0
    assert page.locator("figure").count() == page.locator("figure h3").count()


def test_a_phone(show: Show, page_file: Path) -> None:
    page = show(page_file, viewport=PHONE, has_touch=True)
    assert overflow(page) == 0
    assert overlaps(page) == []
    letters = page.evaluate(
        """[...document.querySelectorAll('svg[data-frame]')].map((s) =>
        12 * s.getBoundingClientRect().width / s.viewBox.baseVal.width)"""
    )
    assert min(letters) > 9.5  # pixels of the charts' letters
    # A table that is wider than the window scrolls in its card, and the keyboard reaches the card.
    wide = page.evaluate(
        """() => [...document.querySelectorAll('table')].filter((t) => t.scrollWidth > innerWidth)
        .map((t) => [getComputedStyle(t.parentElement).overflowX, t.parentElement.tabIndex])"""
    )
    assert all(style == ["auto", 0] for style in wide)


def test_an_audit_is_named_as_it_was_given(show: Show, audit: Path) -> None:
    page = show(audit)
    assert page.locator("h1").inner_text() == "runs/mine"
    assert page.title() == "runs/mine – fspo audit"
    assert "step-0" not in page.locator("body").inner_text()


def test_names_in_the_data_do_no_harm(show: Show, tmp_path: Path) -> None:
    """A path, a column and a value with markup in them are shown, and not obeyed."""
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    folder.mkdir()
    frame = answers(2000).with_columns(
        pl.when(pl.col("task") == "add").then(pl.lit(HARM)).otherwise("task").alias("<script>column")
    )
    frame.write_parquet(folder / "<b>.parquet")
    fspo.audit(folder / "<b>.parquet", by="<script>column").write_html(tmp_path / "audit.html")
    page = show(tmp_path / "audit.html")
    page.wait_for_timeout(100)
    assert page.evaluate("window.harm") is None
    assert page.locator("body script, img, link, iframe").count() == 0
    assert page.locator("h1").inner_text() == str(folder / "<b>.parquet")
    assert page.locator("th", has_text=HARM).first.is_visible()
    assert page.get_by_text("Clip rate by <script>column").first.is_visible()
    assert overflow(page) == 0
    assert overflow(show(tmp_path / "audit.html", viewport=PHONE)) == 0
