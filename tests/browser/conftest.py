"""A real Chromium. Every request is recorded, and none may leave this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page

try:
    from playwright.sync_api import sync_playwright
except ImportError:
    sync_playwright = None

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
         "--disable-sync", "--no-first-run"]  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    why = None
    if sync_playwright is None:
        why = "the package playwright is not installed: pip install -e '.[browser]'"
    elif CHROMIUM is None:
        why = "there is no Chromium: install it, or name it in the environment variable CHROMIUM"
    if why is not None and os.environ.get("CI"):
        raise pytest.UsageError(why)
    here = Path(__file__).parent
    for item in items:
        if why is not None and here in Path(item.fspath).parents:
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS, timeout=300_000)
        yield browser
        browser.close()


def refuse(dialog: Dialog, said: list[str]) -> None:
    said.append(f"dialog: {dialog.message}")
    dialog.dismiss()


@pytest.fixture
def show(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens a page; at the end of the test the console must be empty, and no request may have left this machine."""
    pages: list[tuple[Any, list[str], list[str]]] = []

    def show(where: str | Path, **options: Any) -> Page:
        context = browser.new_context(**options)
        page = context.new_page()
        page.set_default_timeout(300_000)  # for a slow machine
        said: list[str] = []
        asked: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: refuse(dialog, said))
        context.on("request", lambda request: asked.append(request.url))
        context.route(lambda url: not _stays(url), lambda route: route.abort())
        pages.append((context, said, asked))
        page.goto(where.as_uri() if isinstance(where, Path) else where)
        return page

    yield show
    for context, said, asked in pages:
        context.close()
        assert said == []
        assert [url for url in asked if not _stays(url)] == []


def _stays(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "file" or parts.hostname == "127.0.0.1"
