"""Every kind of page in a browser: no requests, no console messages, nothing cut off."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import fspo
from fspo.comparisons import page as comparison
from fspo.report import explore
from fspo.report.run_page import write
from helpers.looks import PHONE, box_of, overflow, overlaps
from helpers.made_rows import METHODS, rows, suite
from helpers.simulated_answers import run_folder
from helpers.synthetic import make_run

if TYPE_CHECKING:
    from helpers.looks import Show


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit")
    run_folder(folder / "mine", n=400)
    fspo.audit(folder / "mine").write_html(folder / "audit.html")
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


@pytest.fixture(scope="module")
def explorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return explore.write(tmp_path_factory.mktemp("explorer") / "explore.html")


@pytest.fixture(scope="module", params=["report", "several", "audit", "compared", "explorer"])
def page_file(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(request.param)
    return path


@pytest.mark.parametrize("width", [700, 1200])
def test_everything_is_drawn(show: Show, page_file: Path, width: int) -> None:
    page = show(page_file, viewport={"width": width, "height": 844})
    assert overflow(page) == 0
    assert overlaps(page) == []
    charts = page.locator("svg[role=img]")
    assert charts.count() >= 1
    for k in range(charts.count()):
        box = box_of(charts.nth(k))
        assert min(box["width"] - 200, box["height"] - 120) > 0
    assert page.locator("figure").count() == page.locator("figure :is(h2, h3)").count()


def test_a_phone(show: Show, page_file: Path) -> None:
    page = show(page_file, viewport=PHONE, has_touch=True)
    assert overflow(page) == 0
    assert overlaps(page) == []
    letters = page.evaluate(
        """[...document.querySelectorAll('svg[role=img]')].map((s) =>
        12 * s.getBoundingClientRect().width / s.viewBox.baseVal.width)"""
    )
    assert min(letters) > 9.5  # pixels of the charts' letters
    # A table that is wider than the window scrolls in its card, and the keyboard reaches the card.
    wide = page.evaluate(
        """() => [...document.querySelectorAll('table')].filter((t) => t.scrollWidth > innerWidth)
        .map((t) => [getComputedStyle(t.parentElement).overflowX, t.parentElement.tabIndex])"""
    )
    assert all(style == ["auto", 0] for style in wide)
