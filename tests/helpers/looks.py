"""How a page looks: what is too wide, and what lies on something else."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    Show = Callable[..., Page]  # the fixture of conftest.py

PHONE = {"width": 390, "height": 844}


def box_of(locator: Locator) -> dict[str, float]:
    """Where an element is drawn: x, y, width and height."""
    box = locator.bounding_box()
    assert box is not None
    return {name: float(value) for name, value in box.items()}


def overflow(page: Page) -> int:
    """How far the page is wider than the window."""
    width: int = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    return width


def overlaps(page: Page) -> list[str]:
    """Texts of a chart that lie on each other, or out of it."""
    problems: list[str] = page.evaluate(
        """() => [...document.querySelectorAll('svg[role=img]')].flatMap((svg) => {
          const box = svg.getBoundingClientRect();
          const texts = [...svg.querySelectorAll('text')].map((t) => [t.textContent, t.getBoundingClientRect()]);
          const out = texts.filter(([, r]) => r.left < box.left - 1 || r.right > box.right + 1 ||
            r.top < box.top - 1 || r.bottom > box.bottom + 1).map(([t]) => `${t} is cut`);
          texts.forEach(([a, r], i) => texts.slice(i + 1).forEach(([b, s]) => {
            const x = Math.min(r.right, s.right) - Math.max(r.left, s.left);
            const y = Math.min(r.bottom, s.bottom) - Math.max(r.top, s.top);
            if (x > 1 && y > 3) out.push(`${a} on ${b}`);
          }));
          return out.map((what) => `${svg.querySelector('title')?.textContent}: ${what}`);
        })"""
    )
    return problems


def ground(page: Page) -> int:
    """How light the page's ground is, from 0 to 765."""
    return lightness(page, "getComputedStyle(document.body).backgroundColor")


def lightness(page: Page, colour: str) -> int:
    """How light a colour is, from 0 to 765, given as an expression of the page."""
    return sum(map(int, re.findall(r"\d+", page.evaluate(colour))))
