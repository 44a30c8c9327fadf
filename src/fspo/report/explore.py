"""`fspo explore`: a page with sliders that shows what each method clips by length, for S ~ Normal(mu L, sigma^2 L)."""

from __future__ import annotations

from pathlib import Path

from fspo.report.document import THEME_BUTTON, document, resource
from fspo.report.page import put


def write(path: str | Path) -> Path:
    """Write the explorer, a self-contained page, and return where it is."""
    return put(Path(path), render())


def render() -> str:
    body = resource("explore.html").replace("<!-- theme -->", THEME_BUTTON)
    return document("What a clip range does to long and short answers – fspo", body, ["explore.js"])
