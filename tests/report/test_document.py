"""The shell, the escaping and the tables that every page is made of."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

import fspo
from fspo.pages import document
from fspo.pages.document import Section
from fspo.pages.plots import Missing, grid
from fspo.pages.tables import Table, TableCell
from fspo.report import explore, run_page
from fspo.text import visible
from helpers.htmlpage import Page, check_policy
from helpers.synthetic import NASTY, make_run


def test_every_text_is_made_visible_and_escaped() -> None:
    links = [Section("a", NASTY, Markup())]
    text = document.document(
        title=NASTY, heading=NASTY, lead=NASTY, main=Markup("<p>hello</p>"), footer=NASTY, links=links
    )
    assert text.count("\\x00\\x1b[31m\\x07 \\ud800 \\u202e end") == 5
    assert "alert(" not in "".join(re.findall("<script.*?</script>", text, re.DOTALL))
    assert "<p>hello</p>" in text
    assert html.unescape(text).count(visible(NASTY)) == 5
    check_policy(text)


def test_a_value_that_a_template_lacks_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="parts"):
        document.render("sections.html")


def test_all_pages_have_the_same_policy(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", steps=2)
    fspo.audit(str(folder)).write_html(tmp_path / "audit.html")
    pages = [
        run_page.write(folder),
        explore.write(tmp_path / "explore.html"),
        tmp_path / "audit.html",
    ]
    for path in pages:
        text = path.read_text(encoding="utf-8")
        check_policy(text)
        assert "unsafe-inline" not in text
        assert text.count('id="theme"') == 1
        Page(text)


def test_panels_side_by_side() -> None:
    page = Page(str(grid([Missing(NASTY, NASTY)], small=True)))
    assert page.tags[0] == ("div", {"class": "grid small"})
    assert page.texts.count(visible(NASTY)) == 2


TABLE = Table(
    "A | title",
    ["name", "count", "rate", "why"],
    [["a", "1", TableCell("2 %", "1 to 3"), "w"], ["<b>", "no\nrows"]],
    words=1,
)


def test_a_table_in_markdown() -> None:
    assert TABLE.markdown().splitlines() == [
        "### A \\| title",
        "",
        "| name | count | rate | why |",
        "| --- | ---: | ---: | --- |",
        "| a | 1 | 2 % (1 to 3) | w |",
        "| <b> | no rows |  |  |",
    ]


def test_a_table_in_a_page() -> None:
    text = str(TABLE.html(3))
    page = Page(text)
    assert text.startswith("<h3>A | title</h3>")
    kinds = [(tag, a.get("class", "")) for tag, a in page.tags if tag in ("th", "td")]
    assert kinds[:4] == [("th", ""), ("th", "n"), ("th", "n"), ("th", "words")]
    assert kinds[4:8] == [("th", ""), ("td", "n"), ("td", "n"), ("td", "words")]
    assert kinds[8:] == [("th", ""), ("td", "none")]
    assert "2 %<small>1 to 3</small>" in text
    assert "&lt;b&gt;" in text
    assert page.count("svg") == 0
    assert "<h" not in str(TABLE.html(None)).replace("<head", "")


def test_a_table_that_is_a_legend_and_a_wide_one() -> None:
    text = str(Table("t", ["a", "b"], [["x", "1"], ["y", "2"]], colours=[4, 7]).html())
    assert re.findall(r"strong (c\d+)", text) == ["c4", "c7"]
    assert '<table class="many">' not in text
    assert '<table class="many">' in str(Table("t", [str(k) for k in range(9)], []).html())
