"""Charts and texts on their own."""

import json
import re

import pytest
from synthetic import NASTY

from fspo.report import charts
from fspo.report.panels.parts import embedded
from fspo.report.text import duration, escape, percent, short, slug, visible


@pytest.mark.parametrize("values", [[], [0.0], [0.0, 0.0], [1e-9, 2e-9], [-3.0, 4e7], [0.5] * 3, [1e-300, 0.0]])
@pytest.mark.parametrize("zero", [True, False])
def test_axes_hold_their_values(values, zero):
    low, high = charts.span(values, zero)
    assert low < high
    slack = 1e-9 * (high - low)
    assert all(low - slack <= v <= high + slack for v in values)
    marks = charts.ticks(low, high)
    assert 1 <= len(marks) <= 12
    assert len({charts.formatter(marks)(v) for v in marks}) == len(marks)


def test_gaps_stay_gaps():
    svg = charts.line("t", "d", [charts.Series("a", [1, 2, 3, 4, 5], [1.0, None, 2.0, float("nan"), 3.0])])
    path = re.search(r'class="line c1" data-label="a" d="([^"]*)"', svg).group(1)
    assert path.count("M") == 3


def test_a_single_point_can_be_seen():
    svg = charts.line("t", "d", [charts.Series("a", [1], [0.5], [0.4], [0.6])])
    assert "<circle" in svg
    assert 'class="whisker own c1"' in svg


def test_thinning_keeps_the_mean():
    series = charts.Series("a", list(range(1000)), [float(k) for k in range(1000)])
    thinned, width = charts.thin(series)
    assert width == 3
    assert len(thinned.x) <= charts.MOST_POINTS
    assert list(thinned.y)[:2] == [1.0, 4.0]


def test_text():
    assert visible("a\tb\n\r\x85") == "a\tb\n\\x0d\\x85"
    assert escape("<'\"&") == "&lt;&#x27;&quot;&amp;"
    assert [percent(v) for v in (None, 0.0, 0.253, 0.0004, 1.0)] == ["–", "0.0 %", "25.3 %", "0.04 %", "100.0 %"]
    assert [short(v) for v in (0.0, 1.2345, 123456.0, -0.00012)] == ["0", "1.23", "123,456", "−1.2e−4"]
    assert [duration(v) for v in (1.26, 59.6, 75, 7300)] == ["1.3 s", "1 min 00 s", "1 min 15 s", "2 h 01 min"]
    assert [slug(t) for t in ("KL a token", "1: Ünï", "名")] == ["kl-a-token", "1-n", "unnamed"]
    assert json.loads(json.dumps(NASTY)) == NASTY  # lone surrogates pass through JSON, so they reach the page


def test_data_cannot_end_its_element():
    text = embedded({"name": NASTY + "</script><!--"})
    assert "<" not in text
    assert ">" not in text
    assert json.loads(text)["name"] == NASTY + "</script><!--"
