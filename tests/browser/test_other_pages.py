"""The pages of an audit and of a comparison in a browser: no requests, no console messages, nothing cut off."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest

import fspo
from fspo.comparisons import figures as comparison
from helpers.htmlpage import check_policy
from helpers.looks import PHONE, box_of, ground, overflow, overlaps
from helpers.made_rows import METHODS, rows, suite
from helpers.simulated_answers import answers, run_folder

if TYPE_CHECKING:
    from playwright.sync_api import Browser

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


@pytest.fixture(scope="module", params=["audit", "compared"])
def page_file(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


def test_everything_is_drawn(show: Show, page_file: Path) -> None:
    page = show(page_file)
    assert overflow(page) == 0
    assert overlaps(page) == []
    charts = page.locator("svg[role=img]")
    assert charts.count() >= 3
    for k in range(charts.count()):
        box = box_of(charts.nth(k))
        assert min(box["width"] - 200, box["height"] - 120) > 0
    assert page.locator("figure").count() == page.locator("figure h3").count()


def test_a_phone(show: Show, page_file: Path) -> None:
    page = show(page_file, viewport=PHONE, has_touch=True)
    assert overflow(page) == 0
    assert overlaps(page) == []
    # A table that is wider than the window scrolls in its card, and the keyboard reaches the card.
    wide = page.evaluate(
        """() => [...document.querySelectorAll('table')].filter((t) => t.scrollWidth > innerWidth)
        .map((t) => [getComputedStyle(t.parentElement).overflowX, t.parentElement.tabIndex])"""
    )
    assert wide
    assert all(found == ["auto", 0] for found in wide)


def test_dark(show: Show, page_file: Path) -> None:
    page = show(page_file, color_scheme="dark")
    assert ground(page) < 150
    page.emulate_media(color_scheme="light")
    assert ground(page) > 650


def test_the_policy_stops_what_would_get_through(browser: Browser, page_file: Path) -> None:
    check_policy(page_file.read_text(encoding="utf-8"))
    page = browser.new_page()
    page.goto(page_file.as_uri())
    blocked = page.evaluate(
        """() => new Promise((done) => {
          document.addEventListener('securitypolicyviolation', (e) => done(e.violatedDirective), { once: true });
          const script = document.createElement('script');
          script.textContent = "window.harm = 'policy'";
          document.body.append(script);
        })"""
    )
    assert blocked == "script-src-elem"
    assert page.evaluate("window.harm") is None
    page.close()


def test_an_audit_is_named_as_it_was_given(show: Show, audit: Path) -> None:
    page = show(audit)
    assert page.locator("h1").inner_text() == "runs/mine"
    assert page.title() == "runs/mine – fspo audit"
    assert "step-0" not in page.locator("body").inner_text()


@pytest.mark.parametrize("options", [{}, {"viewport": PHONE}])
def test_why_a_method_has_no_figures_can_be_read(show: Show, audit: Path, options: dict[str, dict[str, int]]) -> None:
    """The remark begins where the figures of the others do, in sight without scrolling."""
    page = show(audit, **options)
    table = page.locator("table", has=page.locator("thead th", has_text="flatness"))
    left = page.evaluate("t => t.rows[1].cells[1].getBoundingClientRect().left", table.element_handle())
    for name, why in (("grpo", "needs per-token log-probs"), ("reinforce", "has no clip range to set")):
        row = table.locator("tr", has=page.locator(f"th:text-is('{name}')"))
        cell = row.locator("td")
        assert cell.count() == 1
        assert cell.inner_text() == why
        place = cell.evaluate(
            "c => { const r = document.createRange(); r.selectNodeContents(c); const b = r.getBoundingClientRect(); "
            "return [b.left, b.right]; }"
        )
        assert place[0] == pytest.approx(left, abs=1)
        assert place[1] < page.evaluate("innerWidth")


def test_names_in_the_data_do_no_harm(show: Show, tmp_path: Path) -> None:
    """A path, a column and a value with markup in them are shown, and not obeyed."""
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    folder.mkdir()
    frame = answers(2000, steps=20).with_columns(
        pl.when(pl.col("task") == "add").then(pl.lit(HARM)).otherwise("task").alias("<script>column")
    )
    frame.write_parquet(folder / "<b>.parquet")
    found = fspo.audit(folder / "<b>.parquet", by="<script>column")
    found.write_html(tmp_path / "audit.html")
    page = show(tmp_path / "audit.html")
    page.wait_for_timeout(100)
    assert page.evaluate("window.harm") is None
    assert page.locator("body script, img, link, iframe").count() == 0
    assert page.locator("h1").inner_text() == str(folder / "<b>.parquet")
    assert page.locator("th", has_text=HARM).first.is_visible()
    assert page.get_by_text("Clip rate by <script>column").first.is_visible()
    assert overflow(page) == 0
    assert overflow(show(tmp_path / "audit.html", viewport=PHONE)) == 0
