"""The table and the page of a comparison, from made-up rows."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from fspo.comparisons import page as compared
from fspo.comparisons.statistics import SuiteResults
from fspo.pages.document import write_svg
from helpers.htmlpage import checked
from helpers.made_rows import METHODS, rows, suite
from helpers.synthetic import NASTY

SECTIONS = ("overview", "summary", "accuracy", "clipping", "tables")


def cells(text: str, title: str) -> dict[str, dict[str, str]]:
    """The rows of a table of the Markdown, by their first cell."""
    block = re.search(rf"### {re.escape(title)}\n\n((?:\|.*\n?)+)", text)
    assert block is not None
    head, _, *body = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in block[1].splitlines()]
    return {row[0]: dict(zip(head, row, strict=True)) for row in body}


def test_no_two_of_thirteen_methods_look_alike(tmp_path: Path) -> None:
    given = suite((*METHODS, *(f"other {k}" for k in range(3))), ("sort", "add"))
    made = rows(given, seeds=2, fail={("rloo", 1)})
    assert "2 runs failed" in checked(compared.write(made, given, tmp_path / "page.html"), SECTIONS).text
    assert len({compared._look(SuiteResults(made, given), method) for method in given.methods}) == 13
    written = write_svg(compared.plots(made, given), tmp_path / "svg")
    assert len({path.name for path in written}) == len(written) == 5
    for path in written:
        text = path.read_text(encoding="utf-8")
        assert ET.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
        assert not re.search(r"var\(|light-dark|system-ui", text)  # every colour is written out


def test_the_tables_hold_the_figures_of_the_rows() -> None:
    given = suite()
    made = rows(given, fail={("rloo", 3)})
    text = compared.text(made, given)
    assert text.startswith("## Does a fair band learn more?\n\n8 test seeds per method, task and setting. ")
    assert "Code: fspo 0.1.0 at abcdef0123." in text
    assert "With fewer than 5 seeds" not in text
    across = cells(text, "Across 2 tasks")
    assert list(across) == ["fspo", "gspo", "rloo", "grpo"]
    assert across["fspo"]["fspo ahead by, points"] == "–"
    assert across["gspo"]["fspo ahead by, points"].startswith("+")
    gained = [[(r["final"] - r["start"]) / (1 - r["start"]) for r in made if (r["method"], r["task"]) == ("gspo", task)]
              for task in ("sort", "add")]  # fmt: skip
    mean = sum(sum(values) / 8 for values in gained) / 2
    assert across["gspo"]["normalised gain, %"].split()[0] == f"{100 * mean:.1f}"
    assert across["rloo"]["collapsed"] == "2 of 16"
    mean_at_start = sum(0.9 - 0.6 * r["start"] for r in made if (r["method"], r["task"]) == ("fspo", "sort")) / 8
    sort = cells(text, "sort")
    finals = [row["final"] for row in made if (row["method"], row["task"]) == ("gspo", "sort")]
    assert sort["gspo"]["final accuracy, %"].split()[0] == f"{100 * sum(finals) / 8:.1f}"
    assert sort["gspo"]["parameters"] == "clip_low=0.003 clip_high=0.004"
    assert sort["fspo"]["spikes"] == "0.9"
    worked = cells(text, "Features of held-out answers – sort")["worked: fspo"]
    assert (worked["start, %"].split()[0], worked["optimum, %"]) == (f"{100 * mean_at_start:.1f}", "50.0")


def test_one_seed_of_one_method_and_no_test_run_yet(tmp_path: Path) -> None:
    given = suite(("fspo",), ("sort",))
    made = rows(given, seeds=1)
    page = checked(compared.write(made, given, tmp_path / "page.html"), SECTIONS)
    assert "1 test seed per method" in page.text
    assert "(" not in cells(compared.text(made, given), "sort")["fspo"]["final accuracy, %"]
    tuning = [row | {"phase": "tune"} for row in made]
    assert "No test run is finished." in compared.text(tuning, given)
    assert checked(compared.write(tuning, given, tmp_path / "page.html"), ("overview",)).count("svg") == 0


def test_missing_runs_are_noted_and_left_out_of_the_figures(tmp_path: Path) -> None:
    given = suite()
    made = [row for row in rows(given) if (row["method"], row["task"]) != ("gspo", "add") and row["seed"] < 5]
    made = [row for row in made if row["method"] != "rloo" or row["seed"] < 2]
    for row in made:  # nothing was off-policy, and an older file lacks some columns
        row.update(lengths=[], count=[], accepted=[], gains=None, features=None, optimum=None)
    made[0]["commit"] = "fedcba9876543210"
    page = checked(compared.write(made, given, tmp_path / "page.html"), ("overview", "summary", "accuracy", "tables"))
    assert "clipping" not in page.ids
    text = compared.text(made, given)
    assert "2 to 5 test seeds per method" in text
    assert "With fewer than 5 seeds" in text
    assert "1 of 8 combinations have no finished run yet." in text
    assert "Code: fspo 0.1.0 at abcdef0123, fspo 0.1.0 at fedcba9876." in text
    assert cells(text, "Across 2 tasks")["gspo"]["LRE"] == "–"
    alone = [row for row in made if row["method"] != "fspo"]  # the reference has no run yet
    checked(compared.write(alone, given, tmp_path / "page.html"), ("overview", "summary", "tables"))


def ends(start: float) -> dict[str, float]:
    return {"low": 0.0, "high": 1.0, "start": start, "final": 0.9, "count": 10}


def test_settings_confirming_tasks_and_two_methods_apart() -> None:
    every = suite(("fspo", "gspo"), ("sort", "add", "copy"), ("near", "stale 8"))
    given = every.model_copy(
        update={"tasks": {"sort": {}, "add": {}}, "confirm": {"copy": {}}, "hypothesis": "fspo is ahead.",
                "warm_starts": 3}
    )  # fmt: skip
    made = [row | {"warm_start": row["seed"] % 3} for row in rows(every, fail={("gspo", 1)})]
    text = compared.text(made, given)
    assert "Hypothesis: fspo is ahead.\n" in text
    assert "No range was tuned on the confirming tasks: copy." in text
    assert "8 test seeds per method, task and setting, from 3 warm starts." in text
    assert "With fewer than 5 warm starts a bootstrap" in text
    assert "### Across 2 choosing tasks, near\n" in text
    assert cells(text, "add, stale 8")["gspo"]["collapsed"] == "1 of 8"
    confirming = cells(text, "Across 1 confirming task, stale 8")["gspo"]
    apart = compared.pairs(SuiteResults(made, given), "fspo", "gspo")
    assert [row[0] for row in apart.rows][4:] == [f"stale 8, {t}" for t in ("choosing tasks", "sort", "add", "copy")]
    assert apart.rows[-1][1:] == [confirming["fspo ahead by, points"], confirming["pairs won by fspo"]]
    solved = [
        row | {"gains": [ends(1.0), ends(0.2)] if row["task"] == "copy" else [ends(0.1), ends(0.2)]} for row in made
    ]
    weaker = compared.pairs(SuiteResults(solved, given.model_copy(update={"endpoint": "weaker end"})), "fspo", "gspo")
    assert len({len(row) for row in [weaker.head, *weaker.rows]}) == 1
    assert weaker.rows[-1][1] == weaker.rows[-1][-1] == "–", "what is solved from the start has no normalised gain"
    with pytest.raises(ValueError, match="'fpso' is not a method with runs, and two are needed"):
        compared.pairs(SuiteResults(made, given), "fpso", "gspo")


def test_names_are_escaped(tmp_path: Path) -> None:
    given = suite(("fspo", NASTY, "a | b"), ("sort",), title=NASTY)
    made = rows(given, seeds=2)
    path = compared.write(made, given, tmp_path / "page.html")
    checked(path, SECTIONS)
    text = path.read_text(encoding="utf-8")
    assert NASTY not in text
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;" in text
    assert "\x1b" not in compared.text(made, given)
    assert "a \\| b" in compared.text(made, given)
