"""The report page, from real files in a folder."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest

from fspo import runs
from fspo.fairness import measure
from fspo.report.report_run import load
from fspo.report.run_page import incidents, write
from fspo.runs import Cosine, Evaluated, Metrics, RunWriter, Sample, rows
from fspo.text import percent
from helpers.htmlpage import checked
from helpers.synthetic import WARNING, change_rows, make_run, rewrite, summary_of


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = make_run(tmp_path_factory.mktemp("runs") / "demo", steps=30)
    return folder


def all_rows(folder: Path) -> pl.DataFrame:
    return pl.concat([pl.read_parquet(path) for path in rows.files(folder)])


def test_a_whole_run(run: Path) -> None:
    path = write(run)
    assert path == run / "report.html"
    page = checked(path)
    for word in ("Held-out accuracy, start", "25.0 %", "30 of 30", "tiny:2x64", "the run's band", "LRE",
                 "Step 30", "c_low: 0.03"):  # fmt: skip
        assert word in page.text
    assert not load(run).notes
    assert not list(run.glob("*.writing"))


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
    (folder / "config.yaml").write_text(f"steps: {10**400}\n")  # beyond every float
    write(folder)


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
    assert summary.last_steps == (16, 20)
    assert summary.clip["count"].sum() == len(live)
    text = checked(write(folder)).text
    assert f"set to clip {percent(want.clip_rate)} of these answers" in text
    counted = re.findall(r"this run, [\d–]+: [^,]*, ([\d,]+) answers", text)
    assert sum(int(count.replace(",", "")) for count in counted) == len(last)


@pytest.mark.parametrize(
    ("kept", "why"),
    [
        (pl.lit(False), "There are no rows of single answers yet."),
        (~pl.col("off_policy"), "Every update so far was on-policy"),
        (pl.col("length") > 0, "Every advantage of these steps is 0: no answer has a gradient"),
    ],
)
def test_a_run_that_could_not_clip_is_told_apart_from_a_fair_one(tmp_path: Path, kept: pl.Expr, why: str) -> None:
    folder = flatten(make_run(tmp_path / "run", steps=3), 0)
    for path in rows.files(folder):
        pl.read_parquet(path).filter(kept).write_parquet(path)
    text = checked(write(folder)).text
    assert text.count(why) == 1
    assert "Share of each step's gradients that clipping removed" in text  # what the metrics have


def test_a_long_run_stays_small(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", steps=20)
    lines = runs.load(folder).metrics
    rewrite(folder, [lines[s % 20].model_copy(update={"step": s}) for s in range(1, 1001)])
    rewrite(folder, [Sample(step=s, prompt="p" * 9000, completion="<" * 9000) for s in range(1, 1001)])
    text = checked(path := write(folder)).text
    assert path.stat().st_size < 2_000_000
    assert "7,000 more characters" in text
    assert all(f"Step {s}" in text for s in (1, 1000))


def test_several_runs_on_one_page(tmp_path: Path) -> None:
    a, b = make_run(tmp_path / "a" / "same", steps=8), make_run(tmp_path / "b" / "same", steps=5, rule="gspo", seed=1)
    page = checked(path := write([a, b], tmp_path / "compare.html"))
    assert path == tmp_path / "compare.html"
    for word in ("8 of 8", "5 of 5", "Setting that differs", "objective.clip_low", "Step 1 – 1: same",
                 "Clip rate by length through training – 2: same", "truncated – 1: same"):  # fmt: skip
        assert word in page.text


def trl_run(folder: Path) -> Path:
    """A run as a TRL script records it: no timings, answers or evaluations, and TRL's own settings."""
    change_rows(make_run(folder, steps=4, rule="gspo"), advantage=pl.lit(None), task=pl.lit(None))
    for name in ("timings.jsonl", "samples.jsonl", "evaluations.jsonl", "run.json", "config.yaml"):
        (folder / name).unlink()
    RunWriter(folder).describe({"objective": "gspo", "trl": {"output_dir": "out/mine"}}, engine="trl")
    keep = {"step", "lre", "lre_interval", "clip_rate", "warnings", "updates"}
    rewrite(folder, [Metrics(**line.model_dump(include=keep)) for line in runs.load(folder).metrics])
    return folder


def test_a_trl_run_has_no_empty_cards(tmp_path: Path) -> None:
    folder = trl_run(tmp_path / "run")
    text = checked(write(folder)).text
    for word in ("16 updates", "gspo, the run's band", "No answers were recorded."):
        assert word in text
    for word in ("No evaluation", "Not measured", "Held-out", "is missing"):
        assert word not in text
    summary = summary_of(folder)
    assert summary.off_policy
    assert summary.last["advantage"].is_null().all()


def test_evaluations_without_an_accuracy_show_their_reward(tmp_path: Path) -> None:
    """Rewards of a script need not be shares of a whole one."""
    folder = trl_run(tmp_path / "run")
    rewrite(folder, [Evaluated(step=s, split="eval", reward=-2.5 + s) for s in (0, 4)])
    assert "eval: from −2.50 at step 0 to 1.50 at step 4." in checked(write(folder)).text


def test_a_page_is_not_written_through_a_link(tmp_path: Path) -> None:
    folder, private = make_run(tmp_path / "run", steps=2), tmp_path / "private"
    private.write_text("kept")
    for name in ("report.html", "report.html.writing"):
        (folder / name).symlink_to(private)
    assert "<svg" in write(folder).read_text(encoding="utf-8")
    assert private.read_text() == "kept"


def test_a_recorded_cosine_is_drawn_and_an_empty_bound_is_not(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", steps=4)
    assert "Not recorded: it takes the gradients" in checked(write(folder)).text
    lines = [Cosine(step=s, update=3, measured=0.9, bound=b, bound_tight=0.95)
             for s, b in enumerate([-1.0, -1.0, 0.5, 0.6], 1)]  # fmt: skip
    rewrite(folder, lines)
    text = checked(path := write(folder)).text
    assert "the bound guaranteed nothing in 2 of 4 measurements." in text
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
