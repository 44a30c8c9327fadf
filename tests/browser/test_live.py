"""The live page: new steps appear without a reload, and the reader keeps their place."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fspo.runs import Evaluated, Metrics, RunWriter, Sample, Timing, read_lines, rows
from helpers.htmlpage import serving
from helpers.synthetic import make_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from helpers.looks import Show

Going = tuple[Callable[[int], None], str]
PATIENCE = 300_000  # milliseconds, for a slow machine


@pytest.fixture
def going(tmp_path: Path) -> Iterator[Going]:
    """A run in training: `write(n)` makes the folder that of its first n steps."""
    whole, folder = make_run(tmp_path / "whole", steps=12), tmp_path / "run"
    folder.mkdir()

    def write(steps: int) -> None:
        writer = RunWriter(folder)
        shutil.copy(whole / "config.yaml", folder)
        rows.folder_of(folder).mkdir(exist_ok=True)
        for path in rows.files(whole)[:steps]:
            shutil.copy(path, rows.folder_of(folder))
        for kind in (Sample, Evaluated, Timing, Metrics):
            done = max((line.step for line in read_lines(folder, kind)), default=-1)
            for line in read_lines(whole, kind):
                if done < line.step <= steps:
                    writer.append(line)

    with serving(folder) as server:
        yield write, server.url


def wait(page: Page, text: str) -> None:
    page.wait_for_function(
        "text => document.querySelector('main').innerText.includes(text)", arg=text, timeout=PATIENCE
    )


def test_it_follows_and_keeps_the_readers_place(show: Show, going: Going) -> None:
    write, url = going
    page = show(url)
    assert "metrics.jsonl is missing" in page.locator("main").inner_text()
    page.evaluate("window.same = true")
    write(4)
    wait(page, "4 of 12")
    page.get_by_role("button", name="Dark theme").click()
    page.locator("#search").fill("abcde")
    page.locator("#search").evaluate("e => e.setSelectionRange(2, 4)")
    matches = page.locator("#matches").inner_text()
    page.evaluate("scrollTo(0, 900)")
    write(9)
    wait(page, "9 of 12")
    assert page.evaluate("window.same")  # no reload
    assert page.locator("#search").input_value() == "abcde"
    assert page.locator("#matches").inner_text() != matches  # searched again, in more answers
    place = page.evaluate("[document.activeElement.id, document.activeElement.selectionStart, scrollY]")
    assert place == ["search", 2, 900]
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.locator("#search").fill("")
    page.locator("details.step").nth(1).locator("summary").click()
    opened = page.locator("details.step[open]").count()
    write(12)
    wait(page, "12 of 12")
    assert page.locator("details.step[open]").count() >= opened
    assert page.locator("#status").inner_text().startswith("live, last change")


def test_it_says_when_the_server_has_ended(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        page = browser.new_page()
        page.goto(server.url, timeout=PATIENCE)
    page.wait_for_function(
        "() => document.getElementById('status').textContent.startsWith('no connection')", timeout=PATIENCE
    )
    page.close()
