"""The documentation in a browser: it is whole without any other machine, the explorer answers, and search finds."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from helpers.pages import build_site

if TYPE_CHECKING:
    from playwright.sync_api import Page


class Silent(SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The site on this machine."""
    folder = build_site(tmp_path_factory.mktemp("site"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Silent, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.mark.parametrize("page", ["/", "/idea/", "/reference/settings/", "/reference/api/fspo/", "/faq/"])
def test_a_page_opens_without_any_other_machine(show: Callable[..., Page], address: str, page: str) -> None:
    shown = show(address + page)
    assert shown.locator("h1").first.inner_text()
    assert shown.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")


def test_the_explorer_answers_inside_its_page(show: Callable[..., Page], address: str) -> None:
    frame = show(address + "/idea/").frame_locator("iframe.page")
    slider = frame.locator("input[type=range]").first
    before = frame.locator("body").inner_text()
    slider.fill(slider.get_attribute("max") or "")
    assert frame.locator("body").inner_text() != before


def test_search_finds_a_setting(show: Callable[..., Page], address: str) -> None:
    page = show(address + "/")
    page.locator("input.md-search__input").fill("max_new_tokens")
    page.locator(".md-search-result__item").first.wait_for(timeout=300_000)
    assert "reference/settings" in " ".join(
        link.get_attribute("href") or "" for link in page.locator(".md-search-result__link").all()
    )
