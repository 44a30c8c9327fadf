"""The report page, from real files in a folder."""

import re

import numpy as np
import polars as pl
import pytest
import yaml
from htmlpage import checked
from synthetic import NASTY, make_run, write_jsonl

from fspo.fairness import calibrate, measure
from fspo.report.load import load
from fspo.report.page import write
from fspo.report.panels.statistics import last_fairness, last_scale, rules, run_band, threshold
from fspo.report.text import percent


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "demo", steps=30)


def test_a_whole_run(run):
    path = write(run)
    assert path == run / "report.html"
    page = checked(path)
    assert page.count("svg") == 20
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
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt; &#x27;&quot;&amp;&lt;b&gt;" in text
    assert "\\x00\\x1b[31m\\x07 \\ud800 \\u202e end" in text
    assert "&lt;img src=http://example.com/x.png&gt;" in text  # from the configuration
    assert NASTY not in text


def test_another_path_and_another_objective(run, tmp_path):
    folder = make_run(tmp_path / "gspo", steps=6, rule="gspo")
    path = write(folder, tmp_path / "page.html")
    assert path == tmp_path / "page.html"
    text = checked(path).text
    assert "GSPO, the run's band" in text
    assert "the run's rule, GSPO ε = (3.0e−4, 4.0e−4)" in text
    (folder / "config.yaml").write_text("objective: {name: grpo}\n")
    text = checked(write(folder)).text
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
    assert checked(write(make_run(tmp_path / "run", steps=1))).count("svg") == 20


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
    assert text.count("Every update so far was on-policy") == 5


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
    assert "7,000 more characters" in text
    assert text.count("Step ") >= 20
    assert all(f"Step {s}" in text for s in (1, 1000))


def test_the_budget_of_the_answers_holds_whatever_they_are(tmp_path):
    folder = make_run(tmp_path / "run", steps=4)
    rows = [{"step": s, "prompt": "<" * 9000, "completion": "\x00" * 9000} for s in range(1, 101) for _ in range(9)]
    write_jsonl(folder / "samples.jsonl", rows)
    text = checked(path := write(folder)).text
    assert path.stat().st_size < 1_500_000
    assert all(f"Step {s}" in text for s in (1, 100))


def test_bands_are_compared_at_the_clip_rate_of_the_run(tmp_path):
    run = load(make_run(tmp_path / "run", steps=20))
    own, others, rate = rules(run)
    table = run.records.last
    S, L, A = (table[k].to_numpy() for k in ("log_ratio", "length", "advantage"))
    assert rate == pytest.approx(1 - table["accepted"].mean())
    assert own.label == "FSPO"
    assert [rule.label for rule in others] == ["fixed range", "GSPO"]
    for rule in others:
        low, high = rule.bounds(L)
        clipped = ((A > 0) & (high < S)) | ((A < 0) & (low > S))
        assert clipped.mean() == pytest.approx(rate, abs=2 / len(S))
    nothing = threshold(S, np.sqrt(L), np.full(len(S), np.nan), 0.1)  # no advantages: both ways
    assert np.mean(np.abs(S / np.sqrt(L)) > nothing) == pytest.approx(0.1, abs=2 / len(S))


def flatten(folder, longest):
    """Answers longer than that are in groups without variance: no advantage, and accepted."""
    flat = pl.col("length") > longest
    changed = {"advantage": pl.when(flat).then(0.0).otherwise("advantage"),
               "accepted": pl.when(flat).then(1.0).otherwise("accepted")}  # fmt: skip
    for path in (folder / "records").iterdir():
        pl.read_parquet(path).with_columns(**changed).write_parquet(path)
    return folder


def test_answers_without_advantage_are_in_no_clip_rate(tmp_path):
    run = load(flatten(make_run(tmp_path / "run", steps=20, rule="gspo"), 20))
    rows = pl.concat([pl.read_parquet(path) for path in sorted((run.folder / "records").iterdir())])
    pulls = rows.filter((pl.col("staleness") > 0) & (pl.col("length") <= 20))
    last = pulls.filter(pl.col("step") > 15)
    want = measure(last["length"].to_numpy(), last["accepted"].to_numpy(), 8)
    assert last_fairness(run.records) == want
    assert run.records.clip["count"].sum() == len(pulls)
    _, others, rate = rules(run)
    assert rate == pytest.approx(want.clip_rate)
    L, S, A = (last[name].to_numpy() for name in ("length", "log_ratio", "advantage"))
    for rule in others:
        low, high = rule.bounds(L)
        clipped = ((A > 0) & (high < S)) | ((A < 0) & (low > S))
        assert clipped.mean() == pytest.approx(rate, abs=2 / len(S))
    # The drift is that of all answers.
    assert last_scale(run)[0].mu == pytest.approx(calibrate(*(run.records.last[k] for k in ("log_ratio", "length"))).mu)
    text = checked(write(run.folder)).text
    assert f"the run's clip rate, {percent(rate)}" in text
    counted = re.findall(r"clip rate, [\d–]+: [^,]*, ([\d,]+) answers", text)
    assert sum(int(count.replace(",", "")) for count in counted[:8]) == len(last)


def test_a_run_without_any_advantage_is_told_apart_from_a_fair_one(tmp_path):
    folder = flatten(make_run(tmp_path / "run", steps=3), 0)
    write_jsonl(folder / "metrics.jsonl", [{**m, "clip_by_length": []} for m in load(folder).metrics])
    text = checked(write(folder)).text
    assert text.count("Every advantage of these steps is 0: no answer has a gradient") == 3
    assert "Every update so far was on-policy" not in text


def test_several_runs_on_one_page(tmp_path):
    a, b = make_run(tmp_path / "a" / "same", steps=8), make_run(tmp_path / "b" / "same", steps=5, rule="gspo", seed=1)
    page = checked(path := write([a, b], tmp_path / "compare.html"))
    assert path == tmp_path / "compare.html"
    for word in ("1: same", "2: same", "8 of 8", "5 of 5", "Setting that differs", "objective.clip_low",
                 "Clip rate by length through training – 2: same", "1: same, step 1"):  # fmt: skip
        assert word in page.text
    # The bars side by side are of the same bins, and count every row of both runs once.
    counted = re.findall(r"[12]: same, [\d–]+: [^,]*, ([\d,]+) answers", page.text)
    assert sum(int(count.replace(",", "")) for count in counted) == sum(load(f).records.last.height for f in (a, b))


def test_another_engines_run_lacks_much_and_is_shown(tmp_path):
    folder = make_run(tmp_path / "run", steps=4)
    for path in (folder / "records").iterdir():
        pl.read_parquet(path).select("step", "length", "log_ratio", "accepted").write_parquet(path)
    for name in ("timings", "samples", "evaluations"):
        (folder / f"{name}.jsonl").unlink()
    (folder / "config.yaml").write_text("objective: {name: gspo}\n")
    keep = ("step", "lre", "lre_interval", "clip_rate", "warnings")
    write_jsonl(folder / "metrics.jsonl", [{k: m[k] for k in keep} for m in load(folder).metrics])
    text = checked(write(folder)).text
    for word in ("timings.jsonl is missing", "No step has a reward.", "No answer has been written yet.",
                 "Not measured.", "GSPO, the run's band"):  # fmt: skip
        assert word in text
    records = load(folder).records
    assert records.off_policy
    assert records.last["advantage"].is_null().all()


def test_a_recorded_cosine_is_drawn_and_an_empty_bound_is_not(tmp_path):
    folder = make_run(tmp_path / "run", steps=4)
    assert "Not recorded: it takes the gradients" in checked(write(folder)).text
    rows = [{"step": s, "update": 3, "measured": 0.9, "bound": b, "bound_tight": 0.95}
            for s, b in enumerate([-1.0, -1.0, 0.5, 0.6], 1)]  # fmt: skip
    write_jsonl(folder / "cosine.jsonl", rows)
    text = checked(path := write(folder)).text
    assert "The bound said nothing in 2 of 4 measurements." in text
    assert 'data-label="guaranteed"' in path.read_text(encoding="utf-8")
    write_jsonl(folder / "cosine.jsonl", [{**row, "bound": -1.0} for row in rows])
    assert 'data-label="guaranteed"' not in write(folder).read_text(encoding="utf-8")
