"""The table and the page of a comparison, from made-up rows."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from fspo.comparisons.suite_results import SuiteResults
from fspo.comparisons.views import comparison_page, comparison_tables
from fspo.comparisons.views.figures import figure_sections
from fspo.comparisons.views.gain_views import gain_sections
from helpers.htmlpage import checked
from helpers.made_rows import METHODS, rows, suite
from helpers.synthetic import NASTY

FIGURES = ("overview", "summary", "accuracy", "reward", "clipping", "lre", "cosine", "growth", "gains", "gradient",
           "features", "norms", "tables")  # fmt: skip


def cells(text: str, title: str) -> dict[str, dict[str, str]]:
    """The rows of a table of the Markdown, by their first cell."""
    block = re.search(rf"### {re.escape(title)}\n\n((?:\|.*\n?)+)", text)
    assert block is not None
    head, _, *body = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in block[1].splitlines()]
    return {row[0]: dict(zip(head, row, strict=True)) for row in body}


def test_ten_methods_on_four_tasks(tmp_path: Path) -> None:
    given = suite(tuple(METHODS), ("sort", "add", "copy", "count"))
    made = rows(given, fail={("rloo", 3)})
    found = checked(comparison_page.write(made, given, tmp_path / "page.html"), FIGURES)
    svgs = sum(tag == "svg" for tag, _ in found.tags)
    assert svgs == 2 + 2 * 4 + 10 * 4
    colours = {c for _, a in found.tags for c in re.findall(r"\bc\d+\b", a.get("class", ""))}
    assert {f"c{k}" for k in range(1, 11)} <= colours
    assert "4 runs failed" in found.text
    assert not list(tmp_path.glob("*.part"))


def test_no_two_of_thirteen_methods_look_alike(tmp_path: Path) -> None:
    methods = (*METHODS, *(f"other {k}" for k in range(3)))
    given = suite(methods, ("sort",))
    made = rows(given, seeds=2)
    plots = {plot.title: plot.svg for plot in comparison_page.plots(made, given)}
    for title in ("Held-out accuracy – sort", "Clip rate against length – sort", "Cosine over training – sort"):
        lines = re.findall(r'<path class="(line [^"]*)"(?: data-label="[^"]*")? d="M[^"]{30}', plots[title])
        assert len(lines) == len(set(lines)) >= 13, title
    for title in ("Interquartile mean of final accuracy", "Final accuracy – sort"):
        dots = re.findall('<circle class="([^"]*)"', plots[title])
        assert len(dots) == len(set(dots)) == 13
        assert all(f">{name}</text>" in plots[title] for name in methods)
    text = comparison_page.write(made, given, tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.count('<table class="many">') == 2  # across tasks, and the task's own


def test_the_reference_has_no_run_yet(tmp_path: Path) -> None:
    given = suite()
    made = [row for row in rows(given, seeds=2) if row["method"] != "fspo"]
    found = checked(comparison_page.write(made, given, tmp_path / "page.html"), ("overview", "summary", "tables"))
    assert not any("rule" in a.get("class", "") for _, a in found.tags)
    assert "Probability that" not in found.text


def test_how_often_a_bound_is_not_vacuous() -> None:
    given = suite()
    made = rows(given, seeds=2)
    found = cells(comparison_tables.text(made, given), "Cosine between the clipped and the true update")["fspo"]
    ours = [row for row in made if row["method"] == "fspo" and row["phase"] == "test"]
    measured = [c for row in ours for c in row["cosine"]]
    assert found["measurements"] == f"{len(measured)}"
    assert float(found["mean cosine"]) == round(sum(measured) / len(measured), 3)
    per_run = len(ours[0]["cosine"])  # the first bound of every made run is -1
    assert found["non-vacuous bounds, %"] == f"{100 * (per_run - 1) / per_run:.1f}"
    assert found["non-vacuous bounds with correlation inside bins, %"] == "100.0"


def test_the_tables_hold_the_figures_of_the_rows() -> None:
    given = suite()
    made = rows(given, fail={("rloo", 3)})
    text = comparison_tables.text(made, given)
    assert text.startswith("## Does a fair band learn more?\n\n8 test seeds per method, task and setting. ")
    assert "Code: fspo 0.1.0 at abcdef0123." in text
    assert "With fewer than 5 seeds" not in text
    across = cells(text, "Across 2 tasks")
    assert list(across) == ["fspo", "gspo", "rloo", "grpo"]
    assert across["fspo"]["P(fspo better)"] == "–"
    assert across["rloo"]["collapsed"] == "2 of 16"
    sort = cells(text, "sort")
    finals = [row["final"] for row in made if (row["method"], row["task"]) == ("gspo", "sort")]
    assert sort["gspo"]["final accuracy, %"].split()[0] == f"{100 * sum(finals) / 8:.1f}"
    assert sort["gspo"]["parameters"] == "clip_low=0.003 clip_high=0.004"
    assert sort["fspo"]["spikes"] == "0.9"
    assert "sort: fspo" in cells(text, "S = mu L + sigma L^H Z, over all off-policy responses")
    assert list(cells(text, "LRE over attributes other than length, second half of the steps")) == [
        "sort: fspo, by difficulty", "add: fspo, by difficulty"]  # fmt: skip
    same = cells(text, "Bands of three widths, each clipping 10 % of the same responses")["sort: fspo"]
    assert same["LRE: L, GSPO"].startswith("0.2")
    assert same["flatness, points: sqrt(L), FSPO"].startswith("2.0")
    older = [row | {"attributes": "[]"} if (row["task"], row["seed"]) == ("sort", 0) else row for row in made]
    some = cells(
        comparison_tables.text(older, given), "Bands of three widths, each clipping 10 % of the same responses"
    )
    assert list(some) == ["add: fspo"]  # not a mean over the seeds that happen to have it


def test_one_seed_and_one_method(tmp_path: Path) -> None:
    given = suite(("fspo",), ("sort",))
    made = rows(given, seeds=1)
    found = checked(comparison_page.write(made, given, tmp_path / "page.html"), FIGURES)
    assert "1 test seed per method" in found.text
    assert "(" not in cells(comparison_tables.text(made, given), "sort")["fspo"]["final accuracy, %"]


def test_missing_runs_are_noted_and_left_out_of_the_figures(tmp_path: Path) -> None:
    given = suite()
    made = [row for row in rows(given) if (row["method"], row["task"]) != ("gspo", "add") and row["seed"] < 5]
    made = [row for row in made if row["method"] != "rloo" or row["seed"] < 2]
    for row in made:  # nothing was off-policy, no cosine was logged
        row.update(lengths=[], count=[], accepted=[], all_count=[], total=[], square=[], stages=[])
        row.update(gains=None, features=None, optimum=None, gradient=None, norm_clipped=None)  # as in an older file
        row.update(cosine_steps=[], cosine=[], cosine_bound=[], cosine_bound_full=[], h_steps=[], h=[], attributes="[]")
    made[0]["commit"] = "fedcba9876543210"
    found = checked(
        comparison_page.write(made, given, tmp_path / "page.html"), ("overview", "summary", "accuracy", "tables")
    )
    assert not {"cosine", "clipping", "growth", "gains", "gradient", "features", "norms"} & set(found.ids)
    text = comparison_tables.text(made, given)
    assert "2 to 5 test seeds per method" in text
    assert "With fewer than 5 seeds" in text
    assert "1 of 8 combinations have no finished run yet." in text
    assert "different versions of the code: fspo 0.1.0 at abcdef0123, fspo 0.1.0 at fedcba9876." in text
    assert cells(text, "Across 2 tasks")["gspo"]["LRE"] == "–"


def test_no_test_run_yet(tmp_path: Path) -> None:
    given = suite()
    tuning = [row | {"phase": "tune"} for row in rows(given, seeds=1)]
    assert "No test run is finished." in comparison_tables.text(tuning, given)
    found = checked(comparison_page.write(tuning, given, tmp_path / "page.html"), ("overview",))
    assert found.count("svg") == 0


def test_several_settings(tmp_path: Path) -> None:
    given = suite(("fspo", "grpo"), ("sort", "add"), ("on-policy", "stale 2", "stale 8"))
    made = rows(given, seeds=3, fail={("grpo", 1)})
    found = checked(comparison_page.write(made, given, tmp_path / "page.html"), (*FIGURES, "settings"))
    assert sum(tag == "svg" for tag, _ in found.tags) == 2 * 3 + 2 * 6 + 2 + 10 * 6
    text = comparison_tables.text(made, given)
    assert cells(text, "add: final accuracy by setting, %")["grpo"]["stale 8"].endswith("1 collapsed")
    assert cells(text, "IQM of final accuracy over tasks by setting, %")["grpo"]["stale 2"].endswith("2 collapsed")
    assert cells(text, "Across 2 tasks, stale 8")


def test_all_trials(tmp_path: Path) -> None:
    given = suite(("fspo", "gspo"), ("sort",), trials=[0.003, 0.03, 0.3])
    made = rows(given, seeds=3)
    found = checked(comparison_page.write(made, given, tmp_path / "page.html"), ("overview", "sensitivity", "tables"))
    assert sum(tag == "svg" for tag, _ in found.tags) == 4
    assert "0.01" in found.texts  # a tick of the logarithmic axis
    text = comparison_tables.text(made, given)
    swept = cells(text, "IQM of final accuracy by clip parameter, %")
    assert swept["gspo"]["trial 2"].startswith("0.03: ")
    assert cells(text, "sort")["fspo 0.03"]["parameters"] == "c_low=0.03 c_high=0.03 drift=kl"
    ones = suite(("fspo",), ("sort",), trials=[1.0])  # also the default of another field, which is not shown
    assert (
        cells(comparison_tables.text(rows(ones, seeds=1), ones), "sort")["fspo 1"]["parameters"]
        == "c_low=1 c_high=1 drift=kl"
    )


def test_names_are_escaped(tmp_path: Path) -> None:
    given = suite(("fspo", NASTY), ("a b", "a-b"), title=NASTY)
    made = rows(given, seeds=2)
    path = comparison_page.write(made, given, tmp_path / "page.html")
    checked(path, FIGURES)  # every id is unique, though two tasks give the same slug
    text = path.read_text(encoding="utf-8")
    assert NASTY not in text
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;" in text
    assert "\x1b" not in comparison_tables.text(made, given)
    piped = suite(("fspo", "a | b"), ("sort",))
    assert "a \\| b" in comparison_tables.text(rows(piped, seeds=2), piped)


def test_figures_as_files(tmp_path: Path) -> None:
    given = suite(("fspo", "gspo"), ("sort",))
    made = rows(given, seeds=2)
    written = comparison_page.write_images(made, given, svg=tmp_path / "svg", png=tmp_path / "png")
    results = SuiteResults(made, given)
    count = sum(len(section.plots) for section in [*figure_sections(results), *gain_sections(results)])
    assert len({path.name for path in written}) == len(written) == 2 * count
    for path in (tmp_path / "svg").iterdir():
        text = path.read_text(encoding="utf-8")
        assert "var(" not in text
        ET.fromstring(text)
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in (tmp_path / "png").iterdir())


def test_code_that_a_results_file_names_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "named_in_results.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    given = suite(tuple(METHODS)[:2], ("sort",))
    made = [row | {"objective": '{"name": "named_in_results:Class"}'} for row in rows(given)]
    with pytest.raises(ValueError, match="the results name the objective 'named_in_results:Class', which this suite"):
        comparison_page.write(made, given, tmp_path / "page.html")
