"""The metrics and files of a step are a fact about its updates, not about how they were split into micro-batches."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal
from torch import Tensor

import fspo
from fspo import objectives, ratios, tasks
from fspo.config import read
from fspo.model import loading as models
from fspo.model.answers import Answers, split
from fspo.runs import Evaluated, Metrics, RunWarning, RunWriter, load, read_lines
from fspo.runs.recorder import Recorder, Update, warnings_of
from fspo.tasks.scoring import Scorer
from fspo.training.collect import collect
from fspo.training.processes import Team
from fspo.training.update import Learner

WHOLE, PARTS = 100_000, 40  # tokens of a micro-batch
LEARNT = "{name: fspo, clip_rate: 0.1, drift: bounded}"


def learned(small: list[str], token_budget: int, objective: str) -> tuple[Answers, list[Update], Metrics]:
    """One step in double precision, where the split changes a forward pass by less than 1e-12."""
    config = read(None, [*small, f"objective={objective}", f"update.token_budget={token_budget}", "update.lr=0.001"])
    policy = models.load(config.model.path)
    policy.model.double()
    task = tasks.get(config.task)
    with Scorer(task, **config.scoring.model_dump()) as scorer:
        sampled, _ = collect(policy, task, scorer, config, 1, 0, Team())
    updates = Learner(policy, objectives.get(**config.objective), config).learn(sampled, 1)
    recorder = Recorder()
    for update in updates:
        recorder.add(update)
    return sampled, updates, recorder.close(1)


@pytest.mark.parametrize("objective", ["fspo", "{name: fspo, drift: kl}", LEARNT, "gspo", "grpo"])
def test_no_metric_depends_on_the_token_budget(small: list[str], objective: str) -> None:
    sampled, one_by_one, whole = learned(small, WHOLE, objective)
    _, split_up, parts = learned(small, PARTS, objective)
    assert len(split(sampled, WHOLE)) == 1 < len(split(sampled, PARTS))
    expected, actual = (
        {key: value for key, value in m.model_dump().items() if isinstance(value, float)} for m in (whole, parts)
    )
    assert {"mu", "sigma", "ess", "clip_rate", "kl", "grad_norm", "lre"} <= actual.keys()
    assert actual == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert parts.clip_by_length == whole.clip_by_length
    for a, b in zip(one_by_one, split_up, strict=True):  # of the weights that the updates before have left
        assert a.members == b.members
        np.testing.assert_allclose(b.log_ratio, a.log_ratio, rtol=1e-9, atol=1e-12)
    assert np.abs(one_by_one[-1].log_ratio).max() > 1e-3


def test_mu_sigma_and_ess_are_those_of_the_responses(small: list[str]) -> None:
    """mu and sigma of the last update, and the least effective sample size of those that are off-policy."""
    sampled, updates, metrics = learned(small, PARTS, "fspo")
    last = updates[-1]
    rows = [last.members[k] for k in last.computed]
    S, L = last.log_ratio, np.array(sampled.lengths, dtype=float)[rows]
    assert metrics.mu == pytest.approx(ratios.drift(S, L), rel=1e-12)
    assert metrics.sigma == pytest.approx(ratios.scale(S, L, ratios.drift(S, L)), rel=1e-12)
    least = min(ratios.effective_share(u.log_ratio) for u in updates if u.off_policy)
    assert metrics.ess == pytest.approx(least, rel=1e-12)


def test_the_objectives_own_numbers_are_metrics_and_replace_no_others(small: list[str]) -> None:
    _, updates, metrics = learned(small, PARTS, "'helpers.custom_objective:Talkative'")
    mean = float(np.mean([u.metrics["own_number"] for u in updates if u.computed]))
    assert metrics.model_dump()["own_number"] == pytest.approx(mean, rel=1e-12)
    assert mean > 0


WARNED: list[tuple[dict[str, Any], set[str]]] = [
    ({"clip_rate": 0.85}, {"clip_rate"}),
    ({"clip_rate": 0.75}, set()),
    ({"ess": 0.05}, {"drift"}),
    ({"truncated": 0.6}, {"truncated"}),
    ({"groups": 8, "groups_without_variance": 6, "groups_single": 1}, {"variance"}),
    ({"groups": 8, "groups_without_variance": 6}, set()),
    ({"on_policy": True, "updates": 1}, {"on_policy"}),
    ({"on_policy": True, "updates": 2}, set()),
    ({"unscored_by_kind": {"error": 2}, "unscored_example": {"error": "no"}}, {"unscored_error"}),
    ({}, set()),
]


@pytest.mark.parametrize(("values", "kinds"), WARNED, ids=str)
def test_what_is_worth_a_warning(values: dict[str, Any], kinds: set[str]) -> None:
    assert warnings_of(Metrics(step=1, **values)).keys() == kinds


def update(k: int, log_ratio: list[float | None], skipped: bool = False) -> Update:
    n = len(log_ratio)
    columns: dict[str, list[Any]] = {"log_ratio": log_ratio, "length": [4] * n, "advantage": [1.0] * n}
    columns["accepted"] = [None if S is None else float(S < 1) for S in log_ratio]
    return Update(k, k, columns, {"loss": float(k)}, skipped=skipped)


def test_a_step_is_written_with_its_rows_and_the_next_begins_empty(tmp_path: Path) -> None:
    recorder = Recorder(RunWriter(tmp_path))
    for each in (update(0, [0.0, 0.0, None]), update(1, [2.0, 0.5]), update(2, [9.0], skipped=True)):
        recorder.add(each)
    metrics = recorder.close(7, reward=0.5)
    (line,) = read_lines(tmp_path, Metrics)
    assert line == metrics
    assert (line.step, line.reward, line.updates, line.rows) == (7, 0.5, 3, 5)
    assert line.loss == 0.5, "a skipped update is in no mean"
    assert line.clip_rate == 0.5, "of the off-policy update alone"
    rows = pl.read_parquet(tmp_path / "records")
    assert rows["update"].to_list() == [0, 0, 0, 1, 1], "and has no rows, which nobody could audit"
    assert rows["off_policy"].to_list() == [False] * 3 + [True] * 2
    assert rows["log_ratio"].null_count() == rows["accepted"].null_count() == 1
    assert recorder.updates == []


def test_a_step_that_cannot_be_written_is_counted_and_warned_about_once(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(OSError, match="directory"):
        Recorder(writer, optional=False).close(1)
    recorder = Recorder(writer)
    recorder.add(update(0, [0.5, 0.2]))
    with pytest.warns(RunWarning, match="the run goes on without records") as caught:
        closed = [recorder.close(step) for step in (1, 2, 3)]
    assert [(metrics.step, metrics.updates) for metrics in closed] == [(1, 1), (2, None), (3, None)]
    assert (recorder.lost, len(caught)) == (3, 1)
    assert pl.read_parquet(tmp_path / "records").height == 2, "rows are written before their metrics"


# --- any loss -------------------------------------------------------------------------------------------------------


def loss_inputs(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probs of an off-policy update and of the policy before it, advantages, and a mask with an empty row."""
    generator = torch.Generator().manual_seed(seed)
    old = -torch.rand(12, 30, generator=generator) - 0.5
    new = (old + 0.03 * torch.randn(12, 30, generator=generator)).requires_grad_()
    mask = torch.arange(30) < torch.randint(2, 31, (12, 1), generator=generator)
    mask[3] = False
    old[~mask] = torch.nan
    return new, old, torch.randn(12, generator=generator), mask


def recorded(folder: Path, rule: str | None = "gspo", **options: Any) -> tuple[dict[str, float], pl.DataFrame]:
    recorder = fspo.Recorder(folder, rule=rule)
    metrics = recorder.record(**options)
    return metrics, pl.read_parquet(folder / "records")


@pytest.mark.parametrize("rule", ["gspo", "ppo", "fspo", "sapo", None])
def test_all_forms_of_a_batch_have_the_rows_of_the_objective(rule: str | None, tmp_path: Path) -> None:
    new, old, A, mask = loss_inputs(0)
    sampler = old + 0.01
    mine = [list(x) for x in (new, old, mask, sampler)]
    flat = {"segment_ids": torch.arange(12).repeat_interleave(30), "mask": mask.flatten()}
    forms: list[dict[str, Any]] = [
        {"logprobs": new, "old_logprobs": old, "advantages": A, "mask": mask.int(), "sampler_logprobs": sampler},
        {"logprobs": mine[0], "old_logprobs": mine[1], "advantages": A, "mask": mine[2], "sampler_logprobs": mine[3]},
        {"logprobs": new.flatten(), "old_logprobs": old.flatten(), "advantages": A, **flat,
         "sampler_logprobs": sampler.flatten()},
        {"logprobs": new[mask], "old_logprobs": old[mask], "advantages": A.unsqueeze(1).expand(12, 30)[mask],
         "cu_seqlens": [0, *mask.sum(-1).cumsum(0).tolist()], "sampler_logprobs": sampler[mask]},
        {"logprobs": [row.detach().numpy() for row in new], "old_logprobs": old.tolist(), "advantages": A.tolist(),
         "mask": list(mask.numpy()), "sampler_logprobs": [row.numpy() for row in sampler]},
    ]  # fmt: skip
    recordings = [recorded(tmp_path / str(k), rule, **form) for k, form in enumerate(forms)]
    (metrics, rows), trained = recordings[0], mask.any(-1)
    expected = fspo.objectives.get(rule or "gspo")(new, old, A, mask)
    assert rows["length"].to_list() == mask.sum(-1)[trained].tolist()
    torch.testing.assert_close(torch.tensor(rows["log_ratio"].to_list()), expected.log_ratio[trained].detach())
    torch.testing.assert_close(torch.tensor(rows["advantage"].to_list()), A[trained])
    assert rows["mismatch"].to_list() == pytest.approx([-0.01 * L for L in rows["length"]], rel=1e-3)
    assert metrics["mismatch_mu"] == pytest.approx(-0.01, rel=1e-3)
    assert metrics["sigma"] == pytest.approx(expected.metrics["sigma"], rel=1e-5)
    if rule is None:
        assert rows["accepted"].null_count() == 11
        assert "clip_rate" not in metrics
    else:
        torch.testing.assert_close(torch.tensor(rows["accepted"].to_list()), expected.accepted[trained].detach())
        assert metrics["clip_rate"] == pytest.approx(expected.metrics["clip_rate"], rel=1e-5)
    for other_metrics, other in recordings[1:]:
        assert other_metrics == pytest.approx(metrics, rel=1e-4, abs=1e-5)
        columns = ["length", "log_ratio", "accepted", "advantage", "mismatch"]
        assert_frame_equal(other.select(columns), rows.select(columns), rel_tol=1e-4, abs_tol=1e-6)


def test_what_the_loss_accepted_is_recorded_as_it_says(tmp_path: Path) -> None:
    new, old, A, mask = loss_inputs(1)
    batch = {"logprobs": new, "old_logprobs": old, "advantages": A, "mask": mask}
    passed = torch.rand(12, 30, generator=torch.Generator().manual_seed(0)) < 0.5
    shares = (passed & mask).sum(-1) / mask.sum(-1)
    for k, accepted in enumerate((passed, shares.nan_to_num())):
        _, rows = recorded(tmp_path / str(k), None, **batch, accepted=accepted)
        assert rows["accepted"].to_list() == pytest.approx(shares[mask.any(-1)].tolist(), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_loses_neither_counts_nor_advantages(dtype: torch.dtype, tmp_path: Path) -> None:
    new, mask = torch.full((2, 2051), -0.5, dtype=dtype), torch.ones(2, 2051, dtype=torch.bool)
    batch = {"logprobs": new, "old_logprobs": new + 0.01, "advantages": torch.tensor([1e-9, 1.2345]), "mask": mask}
    metrics, rows = recorded(tmp_path, None, **batch, accepted=mask)
    assert rows["accepted"].to_list() == [1.0, 1.0]
    assert rows["advantage"].to_list() == pytest.approx([1e-9, 1.2345], rel=1e-6)
    assert metrics["clip_rate"] == 0


def test_a_flush_in_the_middle_of_a_rollout_loses_nothing(tmp_path: Path) -> None:
    recorder = fspo.Recorder(tmp_path, rule="gspo", updates=2, parts=2)
    recorder.record(*loss_inputs(0), reward=0.5)
    recorder.record(*loss_inputs(1), loss=0.1)
    recorder.flush()
    assert pl.read_parquet(tmp_path / "records")["update"].unique().to_list() == [0]
    for seed in (2, 3):
        recorder.record(*loss_inputs(seed))
    recorder.flush()
    assert sorted(pl.read_parquet(tmp_path / "records")["update"].unique()) == [0, 1]
    (line,) = read_lines(tmp_path, Metrics)
    assert (line.step, line.updates, line.rows, line.reward, line.loss) == (1, 2, 44, 0.5, 0.1)
    later, (new, *rest) = fspo.Recorder(tmp_path, rule="gspo"), loss_inputs(4)
    with pytest.warns(RunWarning, match="NaN"):
        later.record(new * torch.nan, *rest)
    later.record(new, *rest)
    assert [line.step for line in read_lines(tmp_path, Metrics)] == [2], "a rollout without rows keeps no older run"


def test_micro_batches_updates_and_rollouts_are_counted_or_explicit(tmp_path: Path) -> None:
    new, old, A, mask = loss_inputs(2)
    halves = [tuple(x[part] for x in (new, old, A, mask)) for part in (slice(0, 5), slice(5, 12))]
    mismatch = fspo.objectives.get("gspo", mismatch={"c": 0.001})
    counted = fspo.Recorder(tmp_path / "counted", rule=mismatch, updates=2, parts=2)
    explicit = fspo.Recorder(tmp_path / "explicit", rule=mismatch, updates=2)
    for k in range(8):
        half, ends = halves[k % 2], k % 2 == 1
        more: dict[str, Any] = {"sampler_logprobs": half[1] + 0.01, "reward": torch.tensor(k / 8)}
        columns: dict[str, list[Any]] = {"task": ["sort"] * len(half[2]), "reward": [0.5] * len(half[2])}
        first = counted.record(*half, columns=columns, **more)
        assert bool(first) == ends
        assert explicit.record(*half, columns=columns, last=ends, **more) == first
    assert first["mismatch_outside"] == 1
    assert first["mismatch_by_length/2"] == 1
    one, two = (pl.read_parquet(tmp_path / name / "records") for name in ("counted", "explicit"))
    assert one.equals(two)
    assert one.group_by("step", "update").len().sort("step", "update").rows() == [
        (1, 0, 11), (1, 1, 11), (2, 0, 11), (2, 1, 11)
    ]  # fmt: skip
    assert set(one["task"]) == {"sort"}
    assert [line.reward for line in read_lines(tmp_path / "explicit", Metrics)] == [3 / 8, 7 / 8]
    assert fspo.load_run(tmp_path / "explicit").objective == {"name": "gspo", "mismatch": {"c": 0.001}}


def test_one_line_and_a_later_run_in_the_same_folder(tmp_path: Path) -> None:
    new, old, A, mask = loss_inputs(3)
    for _ in range(3):
        fspo.record(tmp_path, new, old, A, mask, rule="gspo")
    assert len(read_lines(tmp_path, Metrics)) == 3
    fspo.Recorder(tmp_path, rule="gspo", start=2).record(new, old, A, mask)
    assert [line.step for line in read_lines(tmp_path, Metrics)] == [1, 2, 3]
    fspo.Recorder(tmp_path, rule="gspo").record(new, old, A, mask)
    assert [line.step for line in read_lines(tmp_path, Metrics)] == [1]
    assert pl.read_parquet(tmp_path / "records").height == 11
    with pytest.warns(RunWarning, match=r"two recorders write to|keeps \{'rule': 'gspo'.* of its first call") as caught:
        again = [fspo.record(tmp_path, new, old, A, mask, rule="ppo") for _ in range(2)]
    assert len(again) == len(caught) == 2


def test_nothing_stops_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new, old, A, mask = loss_inputs(4)
    recorder = fspo.Recorder(tmp_path, rule=fspo.objectives.get("gspo", clip_low=0.0, clip_high=0.0))
    with pytest.warns(RunWarning) as caught:  # noqa: PT031 (all of them count)
        assert recorder.record(new * torch.nan, old, A, mask) == {}
        assert recorder.record(new, old, A * torch.inf, mask) == {}
        assert recorder.record(new[:0], old[:0], A[:0], mask[:0]) == recorder.record([], [], []) == {}
        assert "clip_rate" not in recorder.record(new, old, A, mask, accepted=torch.full((12,), 1.2))
        for _ in range(3):
            recorder.record(new, old, -A.abs(), mask)  # nearly half of them are clipped
            recorder.record(torch.where(mask, old - 0.1, 0.0), old, -A.abs(), mask)  # and all of these
        (tmp_path / "metrics.jsonl").unlink()
        (tmp_path / "metrics.jsonl").mkdir()
        for _ in range(2):
            assert recorder.record(new, old, A, mask)["sigma"] > 0
    assert (recorder.not_finite, recorder.lost) == (2, 2)
    texts = [str(warning.message) for warning in caught]
    words = ("NaN", "not a share", "clipping removed", "cannot be written")
    assert [sum(word in text for text in texts) for word in words] == [1, 1, 1, 1]
    with pytest.warns(RunWarning, match="cannot be written") as caught:
        assert fspo.record(tmp_path / "run.json" / "below", new, old, A, mask)["sigma"] > 0
    assert len(caught) == 1

    monkeypatch.setattr("fspo.runs.recorder.MOST_ROWS", 30)
    pieces = fspo.Recorder(tmp_path / "pieces", rule="gspo", updates=7)
    for _ in range(7):
        pieces.record(new, old, A, mask)
    written = pl.read_parquet(tmp_path / "pieces" / "records").group_by("step").len().sort("step")
    assert written.rows() == [(1, 33), (2, 33), (3, 11)]
    with pytest.warns(RunWarning, match="no optimiser step ended within 30 rows"):
        endless = [pieces.record(new, old, A, mask, last=False) for _ in range(9)]
    assert not any(endless)
    assert len(pieces.end_update()) > 0
    assert pieces.updates[0].lengths.size == 22


def test_threads_share_a_recorder_and_a_fork_leaves_it_alone(tmp_path: Path) -> None:
    new, old, A, mask = loss_inputs(5)
    recorder = fspo.Recorder(tmp_path, rule="gspo", updates=40)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: recorder.record(new, old, A, mask), range(39)))
    child = os.fork()
    if child == 0:
        os._exit(0 if recorder.record(new, old, A, mask) == {} and not (tmp_path / "records").exists() else 1)
    assert os.waitpid(child, 0)[1] == 0
    recorder.record(new, old, A, mask)
    assert pl.read_parquet(tmp_path / "records").height == 40 * 11


def test_what_the_recorder_refuses_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="learns its band"):
        fspo.Recorder(tmp_path, rule="fspo_gate")
    with pytest.raises(ValueError, match="updates = 0"):
        fspo.Recorder(tmp_path, updates=0)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"columns": {"rewrad": []}}, "cannot have 'rewrad'"),
        ({"columns": {"reward": [1.0]}}, "reward has 1 values"),
        ({"columns": {"task": [1] * 12}}, "the column task must hold String or None, not int"),
        ({"accepted": [1.0]}, "accepted has 1 values"),
        ({"accepted": [None, 1]}, "accepted must hold numbers"),
        ({"step": 3}, "counts the steps itself"),
        ({"groups": 2.5}, "groups = 2.5 is no metric"),
        ({"warnings": 3}, "warnings = 3 is no metric"),
        ({"sampler_logprobs": torch.ones(12)}, "sampler_logprobs"),
        ({"mask": None}, "padded log-probs need a mask"),
        ({"advantages": None}, "advantages is None"),
    ],
)
def test_a_refused_record_leaves_nothing_behind(
    options: dict[str, Any], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch: dict[str, Any] = dict(zip(("logprobs", "old_logprobs", "advantages", "mask"), loss_inputs(0), strict=True))
    monkeypatch.chdir(tmp_path)
    recorder = fspo.Recorder("run", rule="gspo")
    monkeypatch.chdir(tmp_path.parent)
    with pytest.raises(ValueError, match=rf"^[^\n]*{sentence}[^\n]*$"):
        recorder.record(**batch | options)
    recorder.record(**batch)
    assert [line.rows for line in read_lines(tmp_path / "run", Metrics)] == [11]


# --- the files of a run folder, as they are cut and merged when a run goes on ---------------------------------------


FOREIGN = ['{"step": 2, "rew', "{}", '{"step": "2"}', '{"step": null}', "[1, 2]", "7", "\x00\x00", '{"step": 1.5}']


@pytest.mark.parametrize("text", FOREIGN)
def test_a_torn_or_foreign_line_is_dropped_when_a_run_goes_on(text: str, tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    for step in (1, 2, 3):
        writer.append(Metrics(step=step, reward=step / 10))
    with (tmp_path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")
    assert [line.step for line in load(tmp_path).metrics] == [1, 2, 3]
    writer.cut(2)
    assert [line.step for line in read_lines(tmp_path, Metrics)] == [1, 2]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


def test_merged_lines_are_in_order_and_replace_those_of_the_same_step_and_split(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    (tmp_path / "evaluations.jsonl").write_text('{"split": "eval"}\n')
    for step in (0, 4):
        writer.append(Evaluated(step=step, split="eval", accuracy=0.1))
    writer.merge(Evaluated, [Evaluated(step=4, split="eval", accuracy=0.5), Evaluated(step=2, split="eval")])
    assert [(line.step, line.accuracy) for line in load(tmp_path).evaluations] == [(0, 0.1), (2, None), (4, 0.5)]
