"""The one shell of every page: a self-contained document that requests nothing from any other machine.

HTML is put together by the templates beside this module. Whatever a template prints is made visible (control characters
become codes) and escaped, unless it is `Markup`, which only templates and `fspo.pages.charts` produce.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fspo.text import slug, visible

__all__ = ["Section", "asset", "document", "embedded", "render", "sections"]


@dataclass(frozen=True)
class Section:
    """A part of a page under its heading, with a link in the navigation."""

    id: str
    title: str
    body: Markup
    lead: str = ""
    link: str = ""  # text of the link; default: the title


def document(
    *,
    title: str,
    heading: str,
    lead: str,
    main: Markup,
    footer: str,
    links: Sequence[Section] = (),
    scripts: Sequence[str] = ("page.js",),
    version: str | None = None,
) -> str:
    """A whole page. A page with a version is live: it asks its own server for newer content.

    The scripts are in the head, so that the theme is set before anything is drawn.
    """
    style = "\n" + asset("style.css") + asset("chart.css")
    code = "\n" + "".join(asset(name) for name in ("theme.js", *scripts))
    return render(
        "shell.html", title=title, heading=heading, lead=lead, main=main, footer=footer, links=links,
        style=Markup(style), script=Markup(code), policy=_policy(style, code, live=version is not None),
        version=version,
    )  # fmt: skip


def sections(parts: Sequence[Section]) -> Markup:
    """The parts of a page, one after the other."""
    return render("sections.html", parts=parts)


def render(template: str, **values: Any) -> Markup:
    """A template filled in."""
    return Markup(_environment.get_template(template).render(values))


def asset(name: str) -> str:
    """The text of a style sheet or a script."""
    return files("fspo.pages").joinpath("assets", name).read_text(encoding="utf-8")


def embedded(value: Any) -> Markup:
    """JSON for a script element, which it cannot end."""
    return Markup(json.dumps(value, separators=(",", ":")).replace("<", "\\u003c").replace(">", "\\u003e"))


def _policy(style: str, script: str, *, live: bool) -> Markup:
    """The content security policy: exactly this style and this script, and nothing from anywhere."""
    rules = f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'"
    return Markup(rules + ("; connect-src 'self'" if live else ""))


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _printed(value: Any) -> Any:
    """Applied to every value that a template prints, before it is escaped."""
    return value if isinstance(value, Markup) else visible(value)


_environment = Environment(
    loader=PackageLoader("fspo.pages"),
    autoescape=True,
    finalize=_printed,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters |= {"embedded": embedded, "slug": slug}
