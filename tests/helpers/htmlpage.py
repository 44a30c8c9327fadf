"""A page taken apart, the checks that hold for every page, and the live page on its server."""

from __future__ import annotations

import base64
import hashlib
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path

from fspo.report.run_page import SECTIONS
from fspo.report.watch import Server, open_server

VOID = {"meta", "br", "hr", "img", "input", "link"}
Attributes = list[tuple[str, str | None]]


class Page(HTMLParser):
    """Checks nesting and gathers what a test asks about."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.ids: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Attributes) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Attributes) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


NUMBERS = {"x", "y", "x1", "x2", "y1", "y2", "width", "height", "cx", "cy", "r", "d", "viewbox", "fill-opacity",
           "transform"}  # fmt: skip


def checked(path: Path, sections: Iterable[str] = SECTIONS) -> Page:
    """The page, after the checks that hold for every page."""
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202e]", text)
    scripts = [attributes for tag, attributes in page.tags if tag == "script"]
    assert [a for a in scripts if a.get("type") != "application/json"] == [{}]  # the page's own, admitted by its hash
    check_policy(text)
    assert page.count("img") == page.count("b") == 0
    assert len(page.ids) == len(set(page.ids))
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("src", "href"):
                assert value.startswith("#")
                assert value[1:] in page.ids
            if name in NUMBERS and tag != "meta":
                assert not re.search("nan|inf|none|null", value.lower())
            if name == "aria-labelledby":
                assert set(value.split()) <= set(page.ids)
            if name in ("width", "height") and tag == "rect":
                assert float(value) >= 0
    assert "url(http" not in text
    assert "@import" not in text
    assert set(sections) <= set(page.ids)
    assert page.count("desc") == sum(tag == "svg" and a.get("role") == "img" for tag, a in page.tags)
    return page


def check_policy(text: str) -> None:
    """The page's content security policy admits its own style and script by their hashes, and nothing else."""
    policy = re.search('Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.group(1).split(";"))
    live = rules.pop("connect-src", None)
    assert live in (None, "'self'")
    hashes = {}
    for kind, tag in (("style-src", "style"), ("script-src", "script")):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        hashes[kind] = f"'sha256-{digest}'"
    assert rules == {"default-src": "'none'", **hashes, "base-uri": "'none'"}


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """The live page of a folder, until the end of the block."""
    with open_server(folder) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
