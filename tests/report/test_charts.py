"""Charts and texts on their own."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

import pytest
from markupsafe import Markup

from fspo.pages import charts
from fspo.pages.document import embedded
from fspo.text import duration, escape, percent, short, slug, visible
from helpers.synthetic import NASTY


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
    heat = charts.heat(NASTY, NASTY, [(1, 1)], [NASTY], [charts.HeatCell(0, 0, 0.5, NASTY)], NASTY, NASTY)
    for svg in (charts.line(NASTY, NASTY, lines, NASTY, NASTY), heat):
        assert isinstance(svg, Markup)
        assert "<script>" not in svg
        assert "\x1b" not in svg
        ET.fromstring(str(svg))


def test_gaps_stay_gaps() -> None:
    svg = charts.line("t", "d", [charts.Series("a", [1, 2, 3, 4, 5], [1.0, None, 2.0, float("nan"), 3.0])])
    path = found(r'class="line c1" data-label="a" d="([^"]*)"', svg)
    assert path.count("M") == 3


def test_a_single_point_can_be_seen() -> None:
    svg = charts.line("t", "d", [charts.Series("a", [1], [0.5], [0.4], [0.6])])
    assert "<circle" in svg
    assert 'class="whisker own c1"' in svg


def found(pattern: str, text: str) -> str:
    """The first group of the first match."""
    match = re.search(pattern, text)
    assert match is not None
    return match.group(1)


def drawn(svg: str) -> list[tuple[str, dict[str, str], str]]:
    """Its elements without the name space, by tag."""
    return [(e.tag, e.attrib, "".join(e.itertext())) for e in ET.fromstring(svg).iter()]


def test_dots_are_where_the_axis_says() -> None:
    rows = [charts.Dot("a", 0.45, (0.4, 0.5), 2), charts.Dot("b", 0.6, (0.55, 0.62), 2, hollow=True)]
    svg = charts.dots("A title", "a: 45 %.", rows, "accuracy", reference=("a", 0.45), width=540)
    left, right, top, bottom, low, high, *_ = map(float, found('data-frame="([^"]*)"', svg).split())
    assert 0 < low <= 0.4 < 0.62 <= high < 1
    parts = drawn(svg)
    circles = [e for tag, e, _ in parts if tag == "circle"]
    at = [low + (float(e["cx"]) - left) / (right - left) * (high - low) for e in circles]
    assert at == pytest.approx([0.45, 0.6], abs=1e-4)
    assert top < float(circles[0]["cy"]) < float(circles[1]["cy"]) < bottom  # the first row is the upper
    assert [e["class"] for e in circles] == ["dot c2", "dot hollow c2"]
    whisker = next(e["d"] for _, e, _ in parts if e.get("class") == "whisker own c2")
    ends = (found(r"^M([\d.]+) ", whisker), found(r"H([\d.]+)M", whisker))
    assert [low + (float(x) - left) / (right - left) * (high - low) for x in ends] == pytest.approx(
        [0.4, 0.5], abs=1e-4
    )
    rule = next(e["d"] for _, e, _ in parts if e.get("class") == "rule" and "V" in e["d"])
    assert rule.startswith(f"M{circles[0]['cx']} ")
    extent = f"from {percent(low)} to {percent(high)}"
    assert f"accuracy (axis {extent})" in [text for *_, text in parts]
    assert '<title id="a-title-t">A title</title>' in svg
    assert f'<desc id="a-title-d">a: 45 %. Axis {extent}.</desc>' in svg
    assert "<title>b: 60.0 % (55.0 % to 62.0 %)</title>" in svg


def test_a_row_without_a_value_stays_empty() -> None:
    rows = [charts.Dot("a", None), charts.Dot("b", float("nan"), (0.1, 0.2)), charts.Dot("c", 0.5, (0.4, float("inf")))]
    svg = charts.dots("t", "d", rows, "accuracy", width=540)
    assert [svg.count(f">{name}</text>") for name in "abc"] == [1, 1, 1]
    assert svg.count("no value") == 2
    assert svg.count("<circle") == 1
    assert "whisker" not in svg
    assert not re.search("nan|inf", svg)
    ET.fromstring(charts.dots("t", "d", [charts.Dot("a", None)], "accuracy", width=540))


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_dots_stay_within_shares(value: float) -> None:
    svg = charts.dots("t", "d", [charts.Dot("a", value, (value, value))], "accuracy", width=540)
    low, high = map(float, found('data-frame="([^"]*)"', svg).split()[4:6])
    assert 0 <= low <= value <= high <= 1
    assert high - low < 0.5
    assert ("axis from" in svg) == (value == 1)  # said where the axis does not start at 0


def test_dots_grow_with_their_rows_and_fit_long_names() -> None:
    heights = []
    for count in (2, 13):
        svg = charts.dots("t", "d", [charts.Dot(NASTY * 3, 0.5)] * count, "accuracy", width=540)
        assert NASTY not in svg
        assert "<script>" not in svg
        heights.append(int(found(r'viewBox="0 0 540 (\d+)"', svg)))
        left, right = map(float, found('data-frame="([^"]*)"', svg).split()[:2])
        assert right - left > 200
        ET.fromstring(svg)
    assert heights[1] - heights[0] >= 11 * 18


def test_dashed_and_dotted_lines_differ() -> None:
    looks: list[dict[str, Any]] = [{}, {"dashed": True}, {"dotted": True}, {"dashed": True, "dotted": True}]
    series = [
        replace(charts.Series(f"{k}", [1, 2, 3], [1.0, 2.0, 3.0], dots=True), **look) for k, look in enumerate(looks)
    ]
    svg = charts.line("t", "d", series)
    assert len(set(re.findall('class="(line [^"]*)" data-label', svg))) == 4
    assert svg.count('class="dot hollow c1"') == 2 * 3  # dots alone tell them apart too


def test_thinning_keeps_the_mean() -> None:
    series = charts.Series("a", list(range(1000)), [float(k) for k in range(1000)])
    thinned, width = charts.thin(series)
    assert width == 3
    assert len(thinned.x) <= charts.MOST_POINTS
    assert list(thinned.y)[:2] == [1.0, 4.0]


def test_text() -> None:
    assert visible("a\tb\n\r\x85") == "a\tb\n\\x0d\\x85"
    assert escape("<'\"&") == "&lt;&#x27;&quot;&amp;"
    assert [percent(v) for v in (None, 0.0, 0.253, 0.0004, 1.0)] == ["–", "0.0 %", "25.3 %", "0.04 %", "100.0 %"]
    assert [short(v) for v in (0.0, 1.2345, 123456.0, -0.00012)] == ["0", "1.23", "123,456", "−1.2e−4"]
    assert [duration(v) for v in (1.26, 59.6, 75, 7300)] == ["1.3 s", "1 min 00 s", "1 min 15 s", "2 h 01 min"]
    assert [slug(t) for t in ("KL a token", "1: Ünï", "名")] == ["kl-a-token", "1-n", "unnamed"]
    assert json.loads(json.dumps(NASTY)) == NASTY  # lone surrogates pass through JSON, so they reach the page


def test_data_cannot_end_its_element() -> None:
    text = embedded({"name": NASTY + "</script><!--"})
    assert "<" not in text
    assert ">" not in text
    assert json.loads(text)["name"] == NASTY + "</script><!--"
