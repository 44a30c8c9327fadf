"""Text and numbers for display; control characters in what a model wrote are shown as codes."""

from __future__ import annotations

import html
import math
import re
from typing import Any

# Controls, lone surrogates, direction overrides and non-characters: all that could act on a page or a terminal.
_ACTIVE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def visible(text: Any) -> str:
    """The text with control characters and the like shown as codes; tabs and newlines stay."""
    return _ACTIVE.sub(_shown, str(text))


def escape(text: Any) -> str:
    """Text for HTML, in an element or in a quoted attribute."""
    return html.escape(visible(text), quote=True)


def _shown(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def percent(value: float | None, digits: int | None = None) -> str:
    """0.253 -> 25.3 %; more digits for small shares, so that 0.0004 is not shown as nothing."""
    if value is None:
        return "–"
    if digits is None:
        digits = 1 if abs(value) >= 0.00995 or abs(value) < 1e-9 else 2  # an end of an interval may be 0 up to rounding
    return f"{100 * value:.{digits}f} %"


def short(value: float | None) -> str:
    """Three significant digits."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 10000:
        return f"{value:,.0f}"
    if size < 0.001:
        return f"{value:.1e}".replace("e-0", "e-").replace("-", "−")
    return f"{value:.{max(0, 2 - math.floor(math.log10(size)))}f}".replace("-", "−")


def duration(seconds: float | None) -> str:
    """75 -> 1 min 15 s; a sum that is beyond every float is not known."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def slug(text: str) -> str:
    """A name for an element or a file."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "unnamed"
