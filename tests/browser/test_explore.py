"""The band explorer: its figures against scipy, its sliders, the phone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from scipy.stats import norm

from fspo import objectives
from fspo.fairness import measure
from fspo.objectives import FSPO
from fspo.ratios import Floats
from fspo.report.explore import write

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from helpers.looks import Show

RULES = ("fspo around the drift", "fspo", "gspo", "rloo")
C = FSPO().c_high


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("pages") / "explore.html")


def outside(
    rule: str, lengths: Any, sigma: float = 0.02, drift: float = 1.0, phi: float = 0.0, fspo: float = 1.0,
    rloo: float = 1.0, gspo: float = 1.0,
) -> Floats:  # fmt: skip
    """The share outside the band, from the definitions in docs/method.md; each rule's width times its factor."""
    L = np.asarray(lengths, dtype=float)
    mu, c = -drift * sigma**2 / 2, C * fspo
    # Var of a sum of L values of an AR(1) process, from its autocovariances.
    lags = [np.arange(1, int(n)) for n in np.atleast_1d(L)]
    variance = np.array([n + 2 * np.sum((n - k) * phi**k) for n, k in zip(np.atleast_1d(L), lags, strict=True)])
    sd = sigma * np.sqrt(variance.reshape(L.shape))
    low, high = {
        "fspo around the drift": (mu * L - c * np.sqrt(L), mu * L + c * np.sqrt(L)),
        "fspo": (-c * np.sqrt(L), c * np.sqrt(L)),
        "rloo": (rloo * math.log(0.8), rloo * math.log(1.2)),
        "gspo": (gspo * L * math.log(1 - 3e-4), gspo * L * math.log(1 + 4e-4)),
    }[rule]
    return np.asarray(norm.cdf(low, mu * L, sd) + norm.sf(high, mu * L, sd))


def widths(**factors: float) -> dict[str, float]:
    """The page's state for factors of the widths; anything else is a setting of its own name."""
    return {f"width-{key}" if key in ("fspo", "gspo", "rloo") else key: value for key, value in factors.items()}


def figures(page: Page) -> dict[str, list[float]]:
    """At the marker, shortest and longest eighth, overall, LRE."""
    rows = page.locator("#figures tr").all()
    return {
        row.locator("th").inner_text(): [float(td.get_attribute("data-value") or 0) for td in row.locator("td.n").all()]
        for row in rows
    }


@pytest.mark.parametrize(
    "change", [{}, {"sigma": 0.05, "drift": 2.5}, {"phi": 0.6, "fspo": 1.6}, {"phi": -0.4, "gspo": 25.0, "rloo": 0.3}]
)
def test_rates_are_those_of_the_definitions(show: Show, path: Path, change: dict[str, float]) -> None:
    page = show(path)
    L = [1, 8, 31, 128, 512, 2048]
    state = page.evaluate("change => Object.assign(state, change)", widths(**change))
    got = page.evaluate("([Ls, s]) => RULES.map((rule) => Ls.map((L) => outside(rule, L, s)))", [L, state])
    for rule, rates in zip(RULES, got, strict=True):
        np.testing.assert_allclose(rates, outside(rule, L, **change), rtol=1e-9, atol=1e-14)


def test_the_lre_is_that_of_the_package(show: Show, path: Path) -> None:
    page = show(path)
    assert page.locator("#lengths").input_value() == "reasoning"
    L = np.maximum(1, np.round(1024 * np.exp(norm.ppf((np.arange(320) + 0.5) / 320))))
    for rule, (_, shortest, longest, overall, lre) in figures(page).items():
        rates = outside(rule, L)
        report = measure(np.repeat(np.arange(8), 40), 1 - rates, by=np.repeat(np.arange(8), 40).astype(str))
        assert lre == pytest.approx(report.lre, rel=1e-9, abs=1e-12)
        assert overall == pytest.approx(report.clip_rate, rel=1e-9)
        assert (shortest, longest) == pytest.approx((rates[:40].mean(), rates[-40:].mean()))


def test_sliders_move_the_curves(show: Show, path: Path) -> None:
    page = show(path)
    curve = page.locator('path[data-rule="fspo"]')
    before, said = curve.get_attribute("d"), page.locator("#said").inner_text()
    slider = page.get_by_label("fspo: c_low, c_high")
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert curve.get_attribute("d") != before
    assert page.locator("#said").inner_text() != said
    factor = page.evaluate("state['width-fspo']")
    assert factor == pytest.approx(10**0.005, rel=1e-9)
    assert page.locator("#width-fspo-value").inner_text() == "0.0506, 0.0506"  # the parameters at that width
    assert figures(page)["fspo"][0] == pytest.approx(float(outside("fspo", 2048, fspo=factor)), rel=1e-9)
    for key in ("sigma", "drift", "phi", "width-fspo", "width-gspo", "width-rloo", "length"):
        for end in ("Home", "End"):
            page.locator(f"#{key}").focus()
            page.keyboard.press(end)
            assert "NaN" not in page.locator("main").inner_html()
    page.get_by_role("button", name="Reset").click()
    assert curve.get_attribute("d") == before
    assert page.locator("#said").inner_text() == said
    page.get_by_label("Lengths of the answers").select_option("short")
    assert figures(page)["rloo"][4] != pytest.approx(1.015, abs=0.1)


def test_all_at_the_same_overall_rate(show: Show, path: Path) -> None:
    page = show(path)
    page.evaluate("factor => { state['width-fspo'] = factor; }", 0.03 / C)
    page.get_by_role("button", name="Same overall clip rate for all").click()
    shown = figures(page)
    wanted = shown["fspo around the drift"]
    assert shown["rloo"][3] == pytest.approx(wanted[3], rel=1e-6)
    assert shown["gspo"][3] == pytest.approx(wanted[3], rel=1e-6)
    assert wanted[4] < 1e-9
    assert min(shown["gspo"][4], shown["rloo"][4]) > 0.1
    # The sliders show the parameters that an objective of that width has.
    for name in ("gspo", "rloo"):
        factor = page.evaluate(f"state['width-{name}']")
        scaled = objectives.get(name).scaled(factor)
        assert scaled is not None
        parameters = page.evaluate(
            "name => RULES.find((rule) => rule.name === name).parameters.map(([, at]) => at(state[`width-${name}`]))",
            name,
        )
        assert parameters == pytest.approx(list(scaled.clip_parameters.values()), rel=4e-4)
