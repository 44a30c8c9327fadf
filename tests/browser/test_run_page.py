"""The report in a browser: what is drawn, what moves, and what models wrote does no harm."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fspo import runs
from fspo.report.run_page import SECTIONS, write
from helpers.looks import box_of, ground, lightness
from helpers.synthetic import NASTY, make_run, rewrite

if TYPE_CHECKING:
    from helpers.looks import Show

HARM = [
    NASTY,
    "<img src=x onerror=\"window.harm='img'\"><svg onload=\"window.harm='svg'\">",
    "</pre></div></main><script>window.harm='script'</script><!--",
    '"><iframe src="http://example.com/"></iframe><link rel=stylesheet href="http://example.com/x.css">',
    "</script><script>window.harm='json'</script>",
    "<a href=\"javascript:window.harm='href'\">needle-in-a-haystack</a>",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = make_run(tmp_path_factory.mktemp("runs") / "demo", steps=100, answers=48)
    lines = runs.load(folder).samples[:30]
    texts = [(HARM[k % len(HARM)], HARM[(k + 1) % len(HARM)]) for k in range(len(lines))]
    rewrite(
        folder,
        [line.model_copy(update={"step": k + 1, "prompt": prompt, "completion": completion})
         for k, (line, (prompt, completion)) in enumerate(zip(lines, texts, strict=True))],
    )  # fmt: skip
    metrics = runs.load(folder).metrics
    metrics[3] = metrics[3].model_copy(update={"warnings": {"one": HARM[1], HARM[2]: "two"}})
    rewrite(folder, metrics)
    return folder


@pytest.fixture(scope="module")
def report(run: Path) -> Path:
    return write(run)


def test_search_finds_answers(show: Show, report: Path) -> None:
    page = show(report)
    answers = page.locator(".answer")
    assert page.locator("#matches").inner_text() == "30 answers"
    page.locator("#search").fill("NEEDLE-in")
    seen = [a for a in answers.all() if a.is_visible()]
    assert page.locator("#matches").inner_text() == f"{len(seen)} of 30 answers"
    assert len(seen) == 10
    assert all("needle-in-a-haystack" in a.inner_text() for a in seen)
    page.locator("#search").fill("<img src=x onerror")
    assert page.locator("#matches").inner_text() == "10 of 30 answers"
    page.locator("#search").fill("no answer has this")
    assert page.locator("#matches").inner_text() == "0 of 30 answers"
    page.locator("#search").fill("")
    assert page.locator("details.step:visible").count() == 30
    assert page.locator("details.step[open]").count() == 2


def test_the_theme_follows_the_system_and_then_the_button(show: Show, report: Path) -> None:
    page = show(report, color_scheme="dark")
    dark = ground(page)
    assert dark < 150
    page.emulate_media(color_scheme="light")
    assert ground(page) > 650
    page.get_by_role("button", name="Dark theme").click()
    assert ground(page) == dark
    page.reload()
    assert ground(page) == dark  # kept
    assert page.get_by_role("button", name="Light theme").is_visible()
    page.emulate_media(media="print")
    letters = lightness(page, "getComputedStyle(document.querySelector('h2')).color")
    assert letters < 150  # paper is white in every theme
    assert not page.locator("nav").is_visible()


def test_what_models_wrote_does_no_harm(show: Show, report: Path) -> None:
    page = show(report)
    for details in page.locator("details").all():
        details.evaluate("d => { d.open = true; }")
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.evaluate("window.harm") is None
    assert page.locator("iframe, img, main a, link, main script:not([type='application/json'])").count() == 0
    text = page.locator("#samples").inner_text()
    for wanted in ('<script>alert("x")</script> \'"&<b> \\x00\\x1b[31m\\x07 \\ud800 \\u202e end', *HARM[1:]):
        assert wanted in text
    warnings = page.locator("#warnings").inner_text()
    assert HARM[1] in warnings
    assert HARM[2] in warnings


def test_without_script_everything_can_be_read(show: Show, report: Path) -> None:
    page = show(report, java_script_enabled=False)
    assert page.locator("svg[role=img]").count() >= 10
    assert page.locator("details.step").count() == 30
    for hidden in ("#theme", "#search"):
        assert not page.locator(hidden).is_visible()


def test_values_under_the_pointer(show: Show, report: Path, run: Path) -> None:
    page = show(report)
    chart = page.locator("svg", has=page.locator("title", has_text="Training reward"))
    chart.scroll_into_view_if_needed()
    box = box_of(chart)
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tip = re.fullmatch(r"step (\d+)\nTraining reward: ([\d.]+)", page.locator("#tip").inner_text())
    assert tip is not None, page.locator("#tip").inner_text()
    assert float(tip.group(2)) == pytest.approx(runs.load(run).metrics[int(tip.group(1)) - 1].reward, abs=2e-3)
    page.mouse.move(5, 5)
    assert not page.locator("#tip").is_visible()


def test_the_keyboard_reaches_everything(show: Show, report: Path) -> None:
    page = show(report)
    reached = set()
    focus = "(e => e.id || (e.tagName === 'SUMMARY' ? 'summary' : e.hash ?? e.tagName))(document.activeElement)"
    page.keyboard.press("Tab")
    while (at := page.evaluate(focus)) != "BODY":
        reached.add(at)
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
        page.keyboard.press("Tab")
    sections = {f"#{name}" for name in SECTIONS}
    assert {"theme", "search", "summary"} | sections <= reached
