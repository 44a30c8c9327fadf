"""What pages are made of: charts, tables, the shell and its escaping, and plots as files of their own."""

from __future__ import annotations

import html
import itertools
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from markupsafe import Markup

import fspo
from fspo.fairness import measure
from fspo.pages import charts, document
from fspo.pages.document import COLOURS, Plot, embedded, grid
from fspo.report import explore, run_page
from fspo.text import duration, escape, percent, short, slug, visible
from helpers.htmlpage import Page, check_policy
from helpers.synthetic import NASTY, make_run

COLOUR_NAMES = [f"--c{k + 1}" for k in range(COLOURS)]


# --- charts ---


@pytest.mark.parametrize("values", [[], [0.0], [0.0, 0.0], [1e-9, 2e-9], [-3.0, 4e7], [0.5] * 3, [1e-300, 0.0]])
@pytest.mark.parametrize("zero", [True, False])
def test_axes_hold_their_values(values: list[float], zero: bool) -> None:
    low, high = charts.span(values, zero)
    assert low < high
    slack = 1e-9 * (high - low)
    assert all(low - slack <= v <= high + slack for v in values)
    marks = charts.ticks(low, high)
    assert 1 <= len(marks) <= 12
    assert len({charts.formatter(marks)(v) for v in marks}) == len(marks)


def test_a_chart_is_markup_whose_texts_are_escaped() -> None:
    """A template prints it as it is, so nothing in it may come from outside unescaped."""
    lines = [charts.Series(NASTY, [1, 2, 3], [1.0, 2.0, 3.0], dots=True), charts.Series("b", [1, 2], [1.0, 2.0])]
    for svg in (
        charts.line(NASTY, NASTY, lines, NASTY, NASTY),
        charts.bars(NASTY, NASTY, [charts.Bars(NASTY, measure([1, 2], [1, 0], by=[NASTY, "b"]).bins)], NASTY, NASTY),
    ):
        assert isinstance(svg, Markup)
        assert "<script>" not in svg
        assert "\x1b" not in svg
        ET.fromstring(str(svg))


@pytest.mark.parametrize("gap", [None, float("nan"), float("inf"), 1e308, -1e308])
def test_a_value_that_cannot_be_drawn_is_a_gap(gap: float | None) -> None:
    """The difference of two numbers near the largest float is infinite."""
    svg = str(charts.line("t", "d", [charts.Series("a", [1, 2, 3, 4, 5], [1.0, gap, 2.0, gap, 3.0])]))
    path = next(e.attrib["d"] for e in ET.fromstring(svg).iter() if e.get("data-label") == "a")
    assert path.count("M") == 3


@pytest.mark.parametrize("theme", [1, 2])
def test_text_can_be_read_against_its_ground(theme: int) -> None:
    """WCAG's contrast for text, 4.5, of every colour that writes or draws, in the light and in the dark theme."""
    known = re.findall(r"(--\w+): light-dark\(#(\w{6}), #(\w{6})\)", document.asset("style.css"))
    light = {}
    for name, *colours in known:
        parts = [int(colours[theme - 1][k : k + 2], 16) / 255 for k in (0, 2, 4)]
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        light[name] = 0.05 + 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    for ground, name in itertools.product(("--page", "--card"), ("--ink", "--muted", "--alert", *COLOUR_NAMES)):
        assert max(light[name], light[ground]) / min(light[name], light[ground]) >= 4.5, (name, ground)


# --- texts and the shell ---


def test_text() -> None:
    assert visible("a\tb\n\r\x85") == "a\tb\n\\x0d\\x85"
    assert escape("<'\"&") == "&lt;&#x27;&quot;&amp;"
    assert [percent(v) for v in (None, 0.0, 0.253, 0.0004, 1.0)] == ["–", "0.0 %", "25.3 %", "0.04 %", "100.0 %"]
    assert [short(v) for v in (0.0, 1.2345, 123456.0, -0.00012)] == ["0", "1.23", "123,456", "−1.2e−4"]
    assert [duration(v) for v in (1.26, 59.6, 75, 7300)] == ["1.3 s", "1 min 00 s", "1 min 15 s", "2 h 01 min"]
    assert duration(float("inf")) == duration(None) == "–"
    assert [slug(t) for t in ("KL a token", "1: Ünï", "名")] == ["kl-a-token", "1-n", "unnamed"]


def test_data_cannot_end_its_element() -> None:
    text = embedded({"name": NASTY + "</script><!--"})
    assert "<" not in text
    assert ">" not in text
    assert json.loads(text)["name"] == NASTY + "</script><!--"


def test_every_text_is_made_visible_and_escaped() -> None:
    text = document.document(title=NASTY, heading=NASTY, lead=NASTY, main=Markup("<p>hello</p>"), footer=NASTY)
    assert "alert(" not in "".join(re.findall("<script.*?</script>", text, re.DOTALL))
    assert "<p>hello</p>" in text
    assert html.unescape(text).count(visible(NASTY)) == 4
    check_policy(text)
    assert Page(str(grid([Plot(NASTY, Markup(), NASTY)]))).texts.count(visible(NASTY)) == 2


def test_all_pages_have_the_same_policy(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=6)
    fspo.audit(str(run)).write_html(tmp_path / "audit.html")
    for path in (run_page.write(run), explore.write(tmp_path / "explore.html"), tmp_path / "audit.html"):
        text = path.read_text(encoding="utf-8")
        check_policy(text)
        assert "unsafe-inline" not in text
        assert text.count('id="theme"') == 1
        Page(text)
