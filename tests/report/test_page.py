"""The report page, from real files in a folder."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import polars as pl
import pytest
import yaml
from synthetic import NASTY, make_run, write_jsonl

from fspo.fairness import measure
from fspo.report import charts, load, write
from fspo.report.page import SECTIONS
from fspo.report.panels import last_fairness, run_band
from fspo.report.text import duration, escape, percent, short, visible

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """Checks nesting and gathers what a test asks about."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.ids: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


NUMBERS = {"x", "y", "x1", "x2", "y1", "y2", "width", "height", "cx", "cy", "r", "d", "viewbox", "fill-opacity",
           "transform"}  # fmt: skip


def checked(path) -> Page:
    """The page, after the checks that hold for every page."""
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202e]", text)
    assert page.count("script") == page.count("img") == page.count("b") == 0
    assert len(page.ids) == len(set(page.ids))
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("src", "href"):
                assert value.startswith("#")
                assert value[1:] in page.ids
            if name in NUMBERS and tag != "meta":
                assert not re.search("nan|inf|none|null", value.lower())
            if name == "aria-labelledby":
                assert set(value.split()) <= set(page.ids)
            if name in ("width", "height") and tag == "rect":
                assert float(value) >= 0
    assert "url(http" not in text
    assert "@import" not in text
    assert {s.id for s in SECTIONS} <= set(page.ids)
    svgs = page.count("svg")
    assert page.count("desc") == svgs
    return page


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "demo", steps=30)


def test_a_whole_run(run):
    path = write(run)
    assert path == run / "report.html"
    page = checked(path)
    assert page.count("svg") == 16
    for word in ("Held-out accuracy, start", "25.0 %", "30 of 30", "tiny:small", "the run's band", "LRE", "Gaussian",
                 "Step 30", "c_low: 0.03"):  # fmt: skip
        assert word in page.text
    assert not load(run).notes
    assert not list(run.glob("*.part"))


def test_the_numbers_are_those_of_the_fairness_module(run):
    rows = pl.concat(
        [pl.read_parquet(run / "records" / f"step-{step:06d}.parquet") for step in range(25, 31)]
    ).filter(pl.col("staleness") > 0)  # fmt: skip
    want = measure(rows["length"].to_numpy(), rows["accepted"].to_numpy(), 8)
    got = last_fairness(load(run).records)
    assert got == want
    text = checked(write(run)).text
    assert percent(want.clip_rate) in text
    assert f"{want.lre:.3f}" in text
    assert load(run).records.last_steps == (25, 30)


def test_the_heat_map_counts_every_off_policy_answer_once(run):
    records = load(run).records
    rows = pl.concat([pl.read_parquet(path) for path in sorted((run / "records").iterdir())])
    moved = rows.filter(pl.col("staleness") > 0)
    assert records.rows == len(rows)
    assert records.clip["count"].sum() == len(moved)
    clipped = (records.clip["count"] * records.clip["clip_rate"]).sum()
    assert clipped == pytest.approx(float((1 - moved["accepted"]).sum()))
    medians = rows.filter(pl.col("update") == 0).group_by("step").agg(pl.col("length").median()).sort("step")
    assert records.lengths["q50"].to_list() == pytest.approx(medians["length"].to_list(), abs=1)


def test_what_models_wrote_is_shown_and_not_obeyed(run):
    text = write(run).read_text(encoding="utf-8")
    assert "<script" not in text
    assert "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt; &#x27;&quot;&amp;&lt;b&gt;" in text
    assert "\\x00\\x1b[31m\\x07 \\ud800 \\u202e end" in text
    assert "&lt;img src=http://example.com/x.png&gt;" in text  # from the configuration
    assert NASTY not in text


def test_another_path_and_another_objective(run, tmp_path):
    folder = make_run(tmp_path / "gspo", steps=6, rule="gspo")
    path = write(folder, tmp_path / "page.html")
    assert path == tmp_path / "page.html"
    text = checked(path).text
    assert "the run's band" not in text
    assert "no band in S" in text


def test_an_empty_folder_says_what_is_missing(tmp_path):
    page = checked(write(tmp_path))
    for name in ("config.yaml", "metrics.jsonl", "timings.jsonl", "evaluations.jsonl", "samples.jsonl", "records/"):
        assert name in page.text
    assert page.count("svg") == 0


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        write(tmp_path / "nowhere")


def test_empty_files(tmp_path):
    for name in ("config.yaml", "metrics.jsonl", "timings.jsonl", "evaluations.jsonl", "samples.jsonl"):
        (tmp_path / name).touch()
    (tmp_path / "records").mkdir()
    assert "metrics.jsonl is empty" in checked(write(tmp_path)).text


def test_one_step(tmp_path):
    assert checked(write(make_run(tmp_path / "run", steps=1))).count("svg") == 16


def test_without_records_the_metrics_serve(tmp_path):
    folder = make_run(tmp_path / "run", steps=4)
    for path in (folder / "records").iterdir():
        path.unlink()
    text = checked(write(folder)).text
    assert "Step 4 alone, from metrics.jsonl" in text
    assert "There are no per-answer records yet." in text


def test_an_on_policy_run_is_told_apart_from_a_fair_one(tmp_path):
    folder = make_run(tmp_path / "run", steps=3)
    for path in (folder / "records").iterdir():
        pl.read_parquet(path).filter(pl.col("staleness") == 0).write_parquet(path)
    metrics = load(folder).metrics
    write_jsonl(
        folder / "metrics.jsonl", [{**m, "lre": None, "lre_interval": None, "clip_by_length": []} for m in metrics]
    )
    text = checked(write(folder)).text
    assert text.count("Every update so far was on-policy") == 4


def test_torn_and_odd_files(tmp_path):
    folder = make_run(tmp_path / "run", steps=5)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "reward": NaN, "lre": Infinity, "warnings": "not a list", "clip_by_length": 7}\n')
        file.write('[1]\n{"step": "x"}\n{"step": 6, "rew')
    (folder / "config.yaml").write_text("a: [1\n")
    (folder / "evaluations.jsonl").write_text('{"step": 0, "accuracy": null}\n{"step": 1, "accuracy": 0.5}\n')
    (folder / "records" / "step-000002.parquet").write_bytes(b"PAR1 torn")
    pl.DataFrame({"step": [3]}).write_parquet(folder / "records" / "step-000003.parquet")
    odd = pl.read_parquet(folder / "records" / "step-000004.parquet").with_columns(
        pl.col("length").cast(pl.Int32), difficulty=pl.lit(None), log_ratio=pl.lit(float("nan"))
    )
    odd.write_parquet(folder / "records" / "step-000004.parquet")
    text = checked(write(folder)).text
    assert "metrics.jsonl: 3 unreadable lines left out." in text
    assert "config.yaml cannot be read" in text
    assert "step-000002.parquet is not a readable Parquet file (and 1 more)" in text
    assert load(folder).records.steps == 2
    assert [m["step"] for m in load(folder).metrics] == [1, 2, 3, 4, 5]


def test_the_band_comes_from_the_metrics_or_the_configuration(tmp_path):
    folder = make_run(tmp_path / "run", steps=4)
    run = load(folder)
    band = run_band(run)
    assert (band.c_low, band.c_high) == (0.03, 0.03)
    assert band.mu == pytest.approx(np.mean([m["mu"] for m in run.metrics]))
    write_jsonl(folder / "metrics.jsonl", [{**m, "drift": -0.001, "c_low": 0.02, "c_high": 0.05} for m in run.metrics])
    band = run_band(load(folder))
    assert (band.mu, band.c_low, band.c_high) == pytest.approx((-0.001, 0.02, 0.05))
    write_jsonl(folder / "metrics.jsonl", run.metrics)
    objective = {"name": "fspo", "c_low": 0.03, "c_high": 0.03, "clip_rate": 0.1, "drift": "zero"}
    (folder / "config.yaml").write_text(yaml.safe_dump({"objective": objective}))
    band = run_band(load(folder))
    assert band.mu == 0
    assert band.c_high == pytest.approx(1.645 * 0.0283, rel=0.1)  # not the c that clip_rate replaces


def test_a_long_run_stays_small(tmp_path):
    folder = make_run(tmp_path / "run", steps=20)
    run = load(folder)
    write_jsonl(folder / "metrics.jsonl", [{**run.metrics[s % 20], "step": s} for s in range(1, 1001)])
    write_jsonl(
        folder / "samples.jsonl", [{"step": s, "prompt": "p" * 9000, "completion": "c" * 9000} for s in range(1, 1001)]
    )
    text = checked(path := write(folder)).text
    assert path.stat().st_size < 1_000_000
    assert "6,000 more characters" in text
    assert all(f"Step {s}" in text for s in (1, 2, 3, 998, 999, 1000))


@pytest.mark.parametrize("values", [[], [0.0], [0.0, 0.0], [1e-9, 2e-9], [-3.0, 4e7], [0.5] * 3, [1e-300, 0.0]])
@pytest.mark.parametrize("zero", [True, False])
def test_axes_hold_their_values(values, zero):
    low, high = charts.span(values, zero)
    assert low < high
    slack = 1e-9 * (high - low)
    assert all(low - slack <= v <= high + slack for v in values)
    marks = charts.ticks(low, high)
    assert 1 <= len(marks) <= 12
    assert len({charts.formatter(marks)(v) for v in marks}) == len(marks)


def test_gaps_stay_gaps():
    svg = charts.line("t", "d", [charts.Series("a", [1, 2, 3, 4, 5], [1.0, None, 2.0, float("nan"), 3.0])])
    path = re.search(r'class="line c1" d="([^"]*)"', svg).group(1)
    assert path.count("M") == 3


def test_a_single_point_can_be_seen():
    svg = charts.line("t", "d", [charts.Series("a", [1], [0.5], [0.4], [0.6])])
    assert "<circle" in svg
    assert 'class="whisker"' in svg


def test_thinning_keeps_the_mean():
    series = charts.Series("a", list(range(1000)), [float(k) for k in range(1000)])
    thinned, width = charts.thin(series)
    assert width == 3
    assert len(thinned.x) <= charts.MOST_POINTS
    assert list(thinned.y)[:2] == [1.0, 4.0]


def test_text():
    assert visible("a\tb\n\r\x85") == "a\tb\n\\x0d\\x85"
    assert escape("<'\"&") == "&lt;&#x27;&quot;&amp;"
    assert [percent(v) for v in (None, 0.0, 0.253, 0.0004, 1.0)] == ["–", "0.0 %", "25.3 %", "0.04 %", "100.0 %"]
    assert [short(v) for v in (0.0, 1.2345, 123456.0, -0.00012)] == ["0", "1.23", "123,456", "−1.2e−4"]
    assert [duration(v) for v in (1.26, 59.6, 75, 7300)] == ["1.3 s", "1 min 00 s", "1 min 15 s", "2 h 01 min"]
    assert json.loads(json.dumps(NASTY)) == NASTY  # lone surrogates pass through JSON, so they reach the page
