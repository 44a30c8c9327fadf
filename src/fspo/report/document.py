"""The shell of every page: one self-contained document that can ask nothing of any other machine."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from fspo.report.text import escape


def resource(name: str) -> str:
    return files("fspo.report").joinpath(name).read_text(encoding="utf-8")


def policy(style: str, script: str, live: bool = False) -> str:
    """The content security policy: exactly this style and this script, and nothing from anywhere."""
    rules = f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'"
    return rules + ("; connect-src 'self'" if live else "")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def document(title: str, body: str, scripts: list[str], version: str | None = None) -> str:
    """A page; a live one has a version. The script is in the head: the theme is set before anything is drawn."""
    style, script = (
        "\n" + "".join(resource(name) for name in names)
        for names in (["style.css", "chart.css"], ["theme.js", *scripts])
    )
    live = version is not None
    return f"""<!doctype html>
<html lang="en"{f' data-live="{escape(version)}"' if live else ""}>
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy(style, script, live)}">
<meta name="referrer" content="no-referrer">
<title>{escape(title)}</title>
<style>{style}</style>
<script>{script}</script>
</head>
<body>
{body}
</body>
</html>
"""


THEME_BUTTON = '<button type="button" id="theme" hidden>Dark</button>'
