"""Figures on the README and on the pages of results are those of the stored rows: of the suite, the methods and the
setting that the sentence names (`quoted.yaml`, and the tables of two pages), and any other of some table at least."""

from __future__ import annotations

import itertools
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from fspo.comparisons import statistics
from fspo.comparisons import suite as suites
from fspo.comparisons.page import number, pairs, percent, text
from fspo.comparisons.plan import Plan
from fspo.comparisons.results import read
from fspo.comparisons.statistics import SuiteResults

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "results").glob("*.md"))]
FIGURE = re.compile(r"[+−]?\d+\.\d+ \([+−]?\d+(?:\.\d+)? to [+−]?\d+(?:\.\d+)?\)")
COUNT = re.compile(r"\d+ of \d+")
CLAIMS = yaml.safe_load((Path(__file__).parent / "quoted.yaml").read_text(encoding="utf-8"))


@cache
def stored(suite: str) -> SuiteResults:
    plan = Plan(suites.load(suite))
    return SuiteResults(plan.finished(read(ROOT / "results" / suite)), plan.suite)


def asked(
    suite: str,
    method: str,
    setting: str,
    *,
    over: str | None = None,
    tasks: str = "confirming",
    what: str = "gain",
) -> str:
    """A figure as the pages write it; `tasks` are a part of the suite, or `all but TASK`, or one task."""
    results = stored(suite)
    part = results.parts.get(f"{tasks} ") or results.parts.get("") or []
    if tasks not in ("confirming", "choosing", "crossed"):
        part = [task for task in results.parts.get("confirming ", results.tasks) if tasks != f"all but {task}"]
        part = [tasks] if tasks in results.tasks else part
    ours, endpoint = results.of(method, setting, part), results.suite.endpoint
    if over is not None:
        ahead = statistics.lead(ours, results.of(over, setting, part), endpoint if what == "gain" else what)
        assert ahead is not None
        return percent(ahead.difference, signed=True)
    if what == "collapsed":
        rows = [row for group in ours for row in group.rows]
        return f"{sum(row['collapsed'] for row in rows)} of {len(rows)}"
    clips = [group.clipping for group in ours if group.clipping is not None]
    if what == "LRE":
        return number(statistics.mean_lre(clips))
    return percent(statistics.mean_flatness(clips) if what == "flatness" else statistics.mean_gain(ours, endpoint))


def plain(figure: str) -> str:
    """Without plus signs, which a sentence may leave out."""
    return figure.replace("+", "")


def on_page(page: str) -> str:
    """A page in one line, without links and emphasis."""
    words = re.sub(r"\]\([^)]*\)", "", (ROOT / page).read_text(encoding="utf-8"))
    return " ".join(re.sub(r"[\[*]", "", words).split())


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim['page']}: {claim['says']}")
def test_a_sentence_quotes_what_it_names(claim: dict[str, Any]) -> None:
    sentence = claim["says"].format(*(asked(**figure) for figure in claim["of"]))
    assert plain(sentence) in plain(on_page(claim["page"]))


@pytest.mark.parametrize("page", ["README.md", "docs/results/README.md"])
def test_every_figure_of_the_first_pages_is_in_such_a_sentence(page: str) -> None:
    claims = [claim for claim in CLAIMS if claim["page"] == page]
    written = " ".join(claim["says"].format(*(asked(**figure) for figure in claim["of"])) for claim in claims)
    for form in (FIGURE, COUNT):
        on_the_page, in_sentences = (sorted(map(plain, form.findall(part))) for part in (on_page(page), written))
        assert on_the_page == in_sentences


@pytest.mark.parametrize("suite", ["evidence", "replication"])
def test_tables_by_method_and_setting(suite: str) -> None:
    """A table with collapsed runs (under stress) has mean gains, another one how far the default is ahead."""
    lines = (ROOT / "docs" / "results" / f"{suite}.md").read_text(encoding="utf-8").splitlines()
    settings: list[str] = []
    compared = 0
    for line in lines:
        cells = [cell.strip().replace("*", "") for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            settings = []
        elif cells[0] == "" and set(cells[1:-1]) >= {"16 updates", "near", "stale 6"}:
            settings = cells[1:]
        elif settings and not cells[0].startswith("-"):
            method = cells[0].removesuffix(", untuned") if cells[0].startswith("fspo_gate, u") else cells[0]
            for setting, cell in zip(settings, cells[1:], strict=True):
                where = (suite, method, "stress") if setting == "collapsed" else (suite, method, setting)
                if settings[-1] == "collapsed":
                    given = asked(*where, what="collapsed" if setting == "collapsed" else "gain").split(" (")[0]
                else:
                    given = asked(suite, "fspo_gate", setting, over=method)
                assert plain(cell) == plain(given), (method, setting)
                compared += 1
    assert compared == {"evidence": 12 * 5 + 11 * 4, "replication": 7 * 4}[suite]


@pytest.fixture(scope="module")
def given() -> set[str]:
    """All figures of the tables of all stored suites, and of any two methods compared in either order."""
    written = [asked(**figure) for claim in CLAIMS for figure in claim["of"]]
    for name in sorted(path.parent.name for path in (ROOT / "results").glob("*/results.parquet")):
        results = stored(name)
        written.append(text(results.rows, results.suite))
        written += [pairs(results, a, b).markdown() for a, b in itertools.permutations(results.methods, 2)]
    return {plain(figure) for part in written for figure in FIGURE.findall(part)}


@pytest.mark.parametrize("page", PAGES[2:], ids=lambda page: page.name)
def test_quoted_intervals_are_those_of_the_rows(page: Path, given: set[str]) -> None:
    quoted = [plain(figure) for figure in FIGURE.findall(page.read_text(encoding="utf-8"))]
    assert [figure for figure in quoted if figure not in given] == []
