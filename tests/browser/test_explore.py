"""The band explorer: its figures against scipy, its sliders, the phone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from fspo.fairness import measure
from fspo.report.explore import write

RULES = ("FSPO", "FSPO without drift", "Fixed range", "GSPO")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("pages") / "explore.html")


def outside(rule: str, L, sigma=0.02, drift=1.0, phi=0.0, c=0.03, epsilon=0.2, gspo=4e-4):
    """The share outside the band, from the definitions in docs/method.md."""
    L = np.asarray(L, dtype=float)
    mu = -drift * sigma**2 / 2
    # Var of a sum of L values of an AR(1) process, from its autocovariances.
    lags = [np.arange(1, int(n)) for n in np.atleast_1d(L)]
    variance = np.array([n + 2 * np.sum((n - k) * phi**k) for n, k in zip(np.atleast_1d(L), lags, strict=True)])
    sd = sigma * np.sqrt(variance.reshape(L.shape))
    low, high = {
        "FSPO": (mu * L - c * np.sqrt(L), mu * L + c * np.sqrt(L)),
        "FSPO without drift": (-c * np.sqrt(L), c * np.sqrt(L)),
        "Fixed range": (math.log(1 - epsilon), math.log(1 + epsilon)),
        "GSPO": (L * math.log(1 - 0.75 * gspo), L * math.log(1 + gspo)),
    }[rule]
    return norm.cdf(low, mu * L, sd) + norm.sf(high, mu * L, sd)


def figures(page) -> dict[str, list[float]]:
    """At the marker, shortest and longest eighth, overall, LRE."""
    rows = page.locator("#figures tr").all()
    return {
        row.locator("th").inner_text(): [float(td.get_attribute("data-value")) for td in row.locator("td.n").all()]
        for row in rows
    }


def test_the_normal_distribution_is_scipys(show, path):
    page = show(path)
    x = np.concatenate([np.linspace(-9, 9, 721), [2.999999, 3, 3.000001, 20, 37]])
    got = page.evaluate("xs => xs.map(upperTail)", x.tolist())
    np.testing.assert_allclose(got, norm.sf(x), rtol=1e-11, atol=1e-300)
    p = np.linspace(0.001, 0.999, 333)
    np.testing.assert_allclose(page.evaluate("ps => ps.map(normalQuantile)", p.tolist()), norm.ppf(p), atol=1e-12)


@pytest.mark.parametrize(
    "change", [{}, {"sigma": 0.05, "drift": 2.5}, {"phi": 0.6, "c": 0.08}, {"phi": -0.4, "gspo": 0.01}]
)
def test_rates_are_those_of_the_definitions(show, path, change):
    page = show(path)
    L = [1, 8, 31, 128, 512, 2048]
    state = page.evaluate("change => Object.assign(state, change)", change)
    got = page.evaluate("([Ls, s]) => RULES.map((rule) => Ls.map((L) => outside(rule, L, s)))", [L, state])
    for rule, rates in zip(RULES, got, strict=True):
        np.testing.assert_allclose(rates, outside(rule, L, **change), rtol=1e-9, atol=1e-14)


def test_the_table_of_the_method_is_met(show, path):
    """docs/method.md's argument in figures: what is drawn is what is computed."""
    page = show(path)
    want = {2048: (0.134, 0.173, 0.838, 0.498), 128: (0.134, 0.136, 0.370, 0.845)}
    for length, rates in want.items():
        page.locator("#length").fill(str(math.log2(length)))
        found = figures(page)
        assert [found[rule][0] for rule in RULES] == pytest.approx(rates, abs=1e-3)


def test_the_lre_is_that_of_the_package(show, path):
    page = show(path)
    assert page.locator("#lengths").input_value() == "reasoning"
    L = np.maximum(1, np.round(1024 * np.exp(norm.ppf((np.arange(320) + 0.5) / 320))))
    for rule, (_, shortest, longest, overall, lre) in figures(page).items():
        rates = outside(rule, L)
        report = measure(np.repeat(np.arange(8), 40), 1 - rates, by=np.repeat(np.arange(8), 40).astype(str))
        assert lre == pytest.approx(report.lre, rel=1e-9, abs=1e-12)
        assert overall == pytest.approx(report.clip_rate, rel=1e-9)
        assert (shortest, longest) == pytest.approx((rates[:40].mean(), rates[-40:].mean()))


def test_sliders_move_the_curves(show, path):
    page = show(path)
    curve = page.locator('path[data-rule="FSPO"]')
    before, said = curve.get_attribute("d"), page.locator("#said").inner_text()
    slider = page.get_by_label("c, half-width of FSPO")
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert curve.get_attribute("d") != before
    assert page.locator("#said").inner_text() != said
    value = page.evaluate("state.c")
    assert value == pytest.approx(0.03 * 10**0.005, rel=0.01)
    assert figures(page)["FSPO"][0] == pytest.approx(float(outside("FSPO", 2048, c=value)), rel=1e-9)
    for key in ("sigma", "drift", "phi", "c", "epsilon", "gspo", "length"):
        for end in ("Home", "End"):
            page.locator(f"#{key}").focus()
            page.keyboard.press(end)
            assert "NaN" not in page.locator("main").inner_html()
    page.get_by_role("button", name="Reset").click()
    assert curve.get_attribute("d") == before
    assert page.locator("#said").inner_text() == said
    page.get_by_label("Lengths of the answers").select_option("short")
    assert figures(page)["Fixed range"][4] != pytest.approx(1.015, abs=0.1)


def test_all_at_the_same_overall_rate(show, path):
    page = show(path)
    page.get_by_role("button", name="Same overall clip rate for all").click()
    found = figures(page)
    assert found["Fixed range"][3] == pytest.approx(found["FSPO"][3], rel=1e-6)
    assert found["GSPO"][3] == pytest.approx(found["FSPO"][3], rel=1e-6)
    assert found["FSPO"][4] < 1e-9
    assert min(found["GSPO"][4], found["Fixed range"][4]) > 0.1


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits(show, path, width, scheme):
    page = show(path, viewport={"width": width, "height": 844}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") == 0
    sizes = page.evaluate(
        """[...document.querySelectorAll('#chart text')].map((t) => t.getBoundingClientRect())
        .map((r) => [r.left, r.right, r.height])"""
    )
    box = page.locator("#chart svg").bounding_box()
    assert all(box["x"] - 1 <= left and right <= box["x"] + box["width"] + 1 for left, right, _ in sizes)
    assert min(height for _, _, height in sizes) > 11
    page.set_viewport_size({"width": 700, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") == 0
