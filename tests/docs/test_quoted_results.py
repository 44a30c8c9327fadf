"""Every figure with an interval on the README and on the pages of results is one that the stored rows give today."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from fspo.comparisons import suite as suites
from fspo.comparisons.page import pairs, text
from fspo.comparisons.plan import Plan
from fspo.comparisons.results import read
from fspo.comparisons.statistics import SuiteResults

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "results").glob("*.md"))]
FIGURE = re.compile(r"[+−]?\d+\.\d+ \([+−]?\d+\.\d+ to [+−]?\d+\.\d+\)")


def plain(figure: str) -> str:
    """Without plus signs, which a sentence may leave out."""
    return figure.replace("+", "")


@pytest.fixture(scope="module")
def given() -> set[str]:
    """All figures of the tables of all stored suites, and of any two methods compared in either order."""
    written = []
    for folder in sorted(path.parent for path in (ROOT / "results").glob("*/results.parquet")):
        plan = Plan(suites.load(folder.name))
        rows = plan.finished(read(folder))
        results = SuiteResults(rows, plan.suite)
        written.append(text(rows, plan.suite))
        written += [pairs(results, a, b).markdown() for a, b in itertools.permutations(results.methods, 2)]
    return {plain(figure) for part in written for figure in FIGURE.findall(part)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_quoted_intervals_are_those_of_the_rows(page: Path, given: set[str]) -> None:
    quoted = [plain(figure) for figure in FIGURE.findall(page.read_text())]
    assert [figure for figure in quoted if figure not in given] == []


def test_the_pages_quote_figures_in_this_form() -> None:
    assert all(FIGURE.search(page.read_text()) for page in PAGES[:2])
