"""Examples in docstrings (`>>>`) as blocks of code."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^( *)>>> .*?(?=^\s*$|\Z)", re.M | re.S)


class Doctests(griffe.Extension):
    """Fences every run of doctest lines, which Markdown would read as quotations."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        if not obj.is_alias and obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(_fenced, obj.docstring.value)


def _fenced(match: re.Match[str]) -> str:
    return f"{match[1]}```pycon\n{match[0].rstrip()}\n{match[1]}```\n"
