"""The report page, from real files in a folder."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fspo import runs
from fspo.fairness import measure
from fspo.report.overview import SAMPLES_BYTES, incidents
from fspo.report.report_run import RowSummary, load
from fspo.report.run_page import plots, write
from fspo.runs import Cosine, Evaluated, Metrics, RunWriter, Sample, rows
from fspo.text import percent
from helpers.htmlpage import checked
from helpers.synthetic import NASTY, WARNING, make_run, rewrite


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = make_run(tmp_path_factory.mktemp("runs") / "demo", steps=30)
    return folder


def summary_of(folder: Path) -> RowSummary:
    summary = load(folder).rows
    assert summary is not None
    return summary


def all_rows(folder: Path) -> pl.DataFrame:
    return pl.concat([pl.read_parquet(path) for path in rows.files(folder)])


def change_rows(folder: Path, **columns: pl.Expr) -> Path:
    """The rows with other columns, of the same types."""
    for path in rows.files(folder):
        table = pl.read_parquet(path)
        table.with_columns(**columns).cast(table.schema).write_parquet(path)
    return folder


def test_a_whole_run(run: Path) -> None:
    path = write(run)
    assert path == run / "report.html"
    page = checked(path)
    for word in ("Held-out accuracy, start", "25.0 %", "30 of 30", "tiny:2x64", "the run's band", "LRE",
                 "Step 30", "c_low: 0.03"):  # fmt: skip
        assert word in page.text
    assert not load(run).notes
    assert not list(run.glob("*.writing"))


def test_the_numbers_are_those_of_the_fairness_module(run: Path) -> None:
    table = all_rows(run).filter((pl.col("step") >= 25) & pl.col("off_policy"))
    want = measure(table["length"].to_numpy(), table["accepted"].to_numpy(), 8)
    assert load(run).fairness() == want
    text = checked(write(run)).text
    assert percent(want.clip_rate) in text
    assert f"{want.lre:.3f}" in text
    assert summary_of(run).last_steps == (25, 30)


def test_clip_rates_through_training_count_every_off_policy_answer_once(run: Path) -> None:
    summary = summary_of(run)
    moved = all_rows(run).filter("off_policy")
    assert summary.clip["count"].sum() == len(moved)
    clipped = (summary.clip["count"] * summary.clip["clip_rate"]).sum()
    assert clipped == pytest.approx(float((1 - moved["accepted"]).sum()))
    by_bin = summary.clip.group_by("bin", maintain_order=True).agg(pl.col("shortest").min(), pl.col("longest").max())
    ends = [edge for row in by_bin.rows() for edge in row[1:]]
    assert len(by_bin) == 3
    assert ends == sorted(ends)  # the bins do not overlap


def test_off_policy_rows_are_those_of_the_column(tmp_path: Path) -> None:
    """Staleness alone does not decide it: the policy may stand still, and may differ from the sampler at once."""
    folder = change_rows(make_run(tmp_path / "run", steps=3), off_policy=pl.col("update") == 2, staleness=pl.lit(0))
    summary = summary_of(folder)
    assert summary.off_policy
    assert summary.clip["count"].sum() == len(all_rows(folder)) / 4
    change_rows(folder, off_policy=pl.lit(False), staleness=pl.lit(3))
    assert not summary_of(folder).off_policy


def test_what_models_wrote_is_shown_and_not_obeyed(run: Path) -> None:
    text = write(run).read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt; &#39;&#34;&amp;&lt;b&gt;" in text
    assert "\\x00\\x1b[31m\\x07 \\ud800 \\u202e end" in text
    assert "&lt;img src=http://example.com/x.png&gt;" in text  # from the configuration
    assert NASTY not in text


def test_each_kind_of_warning_is_shown_once_with_its_steps(run: Path) -> None:
    page = checked(write(run)).text
    section = page[page.index("Kind") : page.index("Sampled answers")]
    assert WARNING.format(30) in section  # the latest
    assert WARNING.format(5) not in section
    assert re.search(r"truncated\s+6\s+5–30\s", section)
    assert "None." not in section


def test_incidents_are_counted_as_they_are_recorded() -> None:
    """`skipped` counts from the start of the run, `unscored` in a step, and `capped` is a share."""
    assert incidents([]) == ""
    assert incidents([Metrics(step=s, skipped=0, unscored=0, capped=0.0) for s in range(1, 4)]) == ""
    lines = [Metrics(step=s, skipped=int(s > 1), unscored=2, capped=0.01 * s) for s in range(1, 101)]
    assert incidents(lines) == "1 update skipped, up to 100.0 % of a step's weights capped, 200 answers without a score"


def test_an_empty_folder_says_what_is_missing(tmp_path: Path) -> None:
    page = checked(write(tmp_path))
    files = ("config.yaml", "metrics.jsonl", "timings.jsonl", "evaluations.jsonl", "samples.jsonl")
    for name in (*files, "records/"):
        assert name in page.text
    assert page.count("svg") == 0
    for name in files:
        (tmp_path / name).touch()
    assert "metrics.jsonl is empty" in checked(write(tmp_path)).text
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        write(tmp_path / "nowhere")


def test_one_step(tmp_path: Path) -> None:
    one, six = (load(make_run(tmp_path / str(steps), steps=steps)) for steps in (1, 6))
    assert [plot.title for plot in plots([one])] == [plot.title for plot in plots([six])]
    checked(write(one.folder))


def test_without_rows_the_page_has_what_the_metrics_have(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", steps=4)
    for path in rows.files(folder):
        path.unlink()
    text = checked(write(folder)).text
    assert "Share of each step's gradients that clipping removed" in text
    assert "There are no rows of single answers yet." in text


def test_an_on_policy_run_is_told_apart_from_a_fair_one(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", steps=3)
    for path in rows.files(folder):
        pl.read_parquet(path).filter(~pl.col("off_policy")).write_parquet(path)
    nothing: dict[str, Any] = {"lre": None, "lre_interval": None, "clip_by_length": []}
    rewrite(folder, [line.model_copy(update=nothing) for line in runs.load(folder).metrics])
    text = checked(write(folder)).text
    assert text.count("Every update so far was on-policy") == 3


def test_torn_and_odd_files(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", steps=6)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "reward": NaN, "lre": Infinity}\n')
        file.write('{"step": 4, "warnings": "not a mapping", "clip_by_length": 7}\n')
        file.write(f'{{"step": {10**400}}}\n{{"step": 5, "groups_without_variance": {10**400}}}\n')
        file.write('[1]\n{"step": "x"}\n{"step": 7, "rew')
    (folder / "config.yaml").write_text("a: [1\n")
    (folder / "evaluations.jsonl").write_text(
        '{"step": 0, "split": "eval", "accuracy": null}\n{"step": 1, "split": "eval", "accuracy": 0.5}\n'
    )
    odd = pl.read_parquet(rows.path_of(folder, 4))
    odd.with_columns(log_ratio=pl.lit(float("nan"))).write_parquet(rows.path_of(folder, 4))
    text = checked(write(folder)).text
    assert "metrics.jsonl: 6 unreadable lines left out." in text
    assert "config.yaml cannot be read" in text
    assert summary_of(folder).last_steps == (1, 6)
    assert [line.step for line in load(folder).metrics] == [1, 2, 3, 4, 5, 6]
    assert load(folder).metrics[2].reward is None
    for text in ("{" * 3000, "a: 2001-99-99", "a: " + "9" * 5000):
        (folder / "config.yaml").write_text(text)
        assert any("config.yaml cannot be read" in note for note in load(folder).notes)
    (folder / "config.yaml").write_text(f"steps: {10**400}\n")  # beyond every float
    write(folder)


def test_a_long_run_stays_small(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", steps=20)
    lines = runs.load(folder).metrics
    rewrite(folder, [lines[s % 20].model_copy(update={"step": s}) for s in range(1, 1001)])
    rewrite(folder, [Sample(step=s, prompt="p" * 9000, completion="c" * 9000) for s in range(1, 1001)])
    text = checked(path := write(folder)).text
    assert path.stat().st_size < 2 * SAMPLES_BYTES
    assert "7,000 more characters" in text
    assert text.count("Step ") >= 20
    assert all(f"Step {s}" in text for s in (1, 1000))
    # The budget holds whatever the answers are: escaping makes these several times as long.
    nasty = {"prompt": "<" * 9000, "completion": "\x00" * 9000}
    rewrite(folder, [Sample(step=s, **nasty) for s in range(1, 101) for _ in range(9)])
    text = checked(path := write(folder)).text
    assert path.stat().st_size < 2 * SAMPLES_BYTES
    assert all(f"Step {s}" in text for s in (1, 100))


def flatten(folder: Path, longest: int) -> Path:
    """Answers longer than that are in groups without variance: no advantage, and accepted."""
    flat = pl.col("length") > longest
    return change_rows(
        folder, advantage=pl.when(flat).then(0.0).otherwise("advantage"),
        accepted=pl.when(flat).then(1.0).otherwise("accepted"),
    )  # fmt: skip


def test_answers_without_advantage_are_in_no_clip_rate(tmp_path: Path) -> None:
    folder = flatten(make_run(tmp_path / "run", steps=20, rule="gspo"), 20)
    live = all_rows(folder).filter(pl.col("off_policy") & (pl.col("length") <= 20))
    last = live.filter(pl.col("step") > 15)
    want = measure(last["length"].to_numpy(), last["accepted"].to_numpy(), 8)
    summary = summary_of(folder)
    assert load(folder).fairness() == want
    assert summary.clip["count"].sum() == len(live)
    text = checked(write(folder)).text
    assert f"the run's clip rate, {percent(want.clip_rate)}" in text
    counted = re.findall(r"this run, [\d–]+: [^,]*, ([\d,]+) answers", text)
    assert sum(int(count.replace(",", "")) for count in counted) == len(last)


def test_a_run_without_any_advantage_is_told_apart_from_a_fair_one(tmp_path: Path) -> None:
    folder = flatten(make_run(tmp_path / "run", steps=3), 0)
    rewrite(folder, [line.model_copy(update={"clip_by_length": []}) for line in runs.load(folder).metrics])
    text = checked(write(folder)).text
    assert text.count("Every advantage of these steps is 0: no answer has a gradient") == 2
    assert "Every update so far was on-policy" not in text


def test_several_runs_on_one_page(tmp_path: Path) -> None:
    a, b = make_run(tmp_path / "a" / "same", steps=8), make_run(tmp_path / "b" / "same", steps=5, rule="gspo", seed=1)
    page = checked(path := write([a, b], tmp_path / "compare.html"))
    assert path == tmp_path / "compare.html"
    for word in ("1: same", "2: same", "8 of 8", "5 of 5", "Setting that differs", "objective.clip_low",
                 "Clip rate by length through training – 2: same", "1: same, step 1",
                 "1: same: truncated"):  # fmt: skip
        assert word in page.text
    # The bars side by side are of the same bins, and count every row of both runs once.
    counted = re.findall(r"[12]: same, [\d–]+: [^,]*, ([\d,]+) answers", page.text)
    assert sum(int(count.replace(",", "")) for count in counted) == sum(summary_of(f).last.height for f in (a, b))


def trl_run(folder: Path, **settings: Any) -> Path:
    """A run as a TRL script records it: no timings, answers or evaluations, and TRL's own settings."""
    change_rows(make_run(folder, steps=4, rule="gspo"), advantage=pl.lit(None), task=pl.lit(None))
    for name in ("timings.jsonl", "samples.jsonl", "evaluations.jsonl", "run.json", "config.yaml"):
        (folder / name).unlink()
    RunWriter(folder).describe({"objective": "gspo", "trl": {"output_dir": "out/mine", **settings}}, engine="trl")
    keep = {"step", "lre", "lre_interval", "clip_rate", "warnings", "updates"}
    rewrite(folder, [Metrics(**line.model_dump(include=keep)) for line in runs.load(folder).metrics])
    return folder


def test_a_trl_run_has_no_empty_cards_and_its_optimiser_steps(tmp_path: Path) -> None:
    folder = trl_run(tmp_path / "run", max_steps=20)
    text = checked(write(folder)).text
    for word in ("16 of 20", "optimiser steps, in 4 rollouts", "gspo, the run's band", "No answers were recorded."):
        assert word in text
    for word in ("No evaluation", "Not measured", "Held-out", "is missing"):
        assert word not in text
    summary = summary_of(folder)
    assert summary.off_policy
    assert summary.last["advantage"].is_null().all()
    text = checked(write(trl_run(tmp_path / "epochs", max_steps=-1))).text  # TRL's default: as many as its epochs have
    assert "16 optimiser steps, in 4 rollouts" in " ".join(text.split())


def test_evaluations_without_an_accuracy_show_their_reward(tmp_path: Path) -> None:
    """Rewards of a script need not be shares of a whole one."""
    folder = trl_run(tmp_path / "run")
    rewrite(folder, [Evaluated(step=s, split="eval", reward=-2.5 + s) for s in (0, 4)])
    assert "Held-out reward" in [plot.title for plot in plots([load(folder)])]
    assert "eval: from −2.50 at step 0 to 1.50 at step 4." in checked(write(folder)).text


def test_a_run_that_has_not_been_evaluated_yet_says_so_once(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", steps=2)
    (folder / "evaluations.jsonl").write_text("")
    assert checked(write(folder)).text.count("No evaluation has been written yet.") == 1


def test_a_page_is_not_written_through_a_link(tmp_path: Path) -> None:
    folder, private = make_run(tmp_path / "run", steps=2), tmp_path / "private"
    private.write_text("kept")
    for name in ("report.html", "report.html.writing"):
        (folder / name).symlink_to(private)
    assert "<svg" in write(folder).read_text(encoding="utf-8")
    assert private.read_text() == "kept"


@pytest.mark.parametrize("file", ["metrics", "timings", "evaluations"])
def test_numbers_near_the_largest_float_are_drawn_as_gaps(tmp_path: Path, file: str) -> None:
    """Sums and differences of them are infinite."""
    folder = make_run(tmp_path / "run", steps=3)
    path = folder / f"{file}.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    keys = [key for key, value in lines[-1].items() if isinstance(value, float)]
    assert keys
    for sign in (1, -1):
        huge = [line | dict.fromkeys(keys, sign**k * 1e308) for k, line in enumerate(lines)]
        path.write_text("".join(json.dumps(line) + "\n" for line in huge))
        checked(write(folder))


def test_a_recorded_cosine_is_drawn_and_an_empty_bound_is_not(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", steps=4)
    assert "Not recorded: it takes the gradients" in checked(write(folder)).text
    lines = [Cosine(step=s, update=3, measured=0.9, bound=b, bound_tight=0.95)
             for s, b in enumerate([-1.0, -1.0, 0.5, 0.6], 1)]  # fmt: skip
    rewrite(folder, lines)
    text = checked(path := write(folder)).text
    assert "The bound guaranteed nothing in 2 of 4 measurements." in text
    assert 'data-label="guaranteed"' in path.read_text(encoding="utf-8")
    rewrite(folder, [line.model_copy(update={"bound": -1.0}) for line in lines])
    assert 'data-label="guaranteed"' not in write(folder).read_text(encoding="utf-8")


def test_row_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for content in (b"PAR1 torn", None):
        folder = make_run(tmp_path / str(content), steps=3)
        path = rows.path_of(folder, 2)
        if content is None:
            pl.DataFrame({"step": [3]}).write_parquet(path)
        else:
            path.write_bytes(content)
        run = load(folder)
        assert run.rows is None
        assert any("records/ cannot be read" in note for note in run.notes)
        checked(write(folder))
