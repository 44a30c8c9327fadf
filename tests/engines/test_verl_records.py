"""The run folder of a run with verl: a resumed run goes on from it, and verl's own log is merged into it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

pytest.importorskip("verl")
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.utils.tracking import FileLogger

from fspo.engines.verl.run import collect
from fspo.runs import Evaluated, Metrics, load, read_lines
from helpers.audited import assert_the_audit_agrees
from helpers.verl_ranks import ROWS, actor, train, update


def test_a_resumed_run_goes_on_with_what_was_learnt(tmp_path: Path) -> None:
    rows, case = torch.arange(ROWS), ("fspo_adaptive", {"clip_rate": 0.3})
    whole = train(actor(*case), rows, 1, 6)
    train(actor(*case, records=str(tmp_path)), rows, 1, 6, rollouts=2)  # the second of them after its checkpoint
    again = actor(*case, records=str(tmp_path), checkpoints=str(tmp_path / "global_step_1"))
    for seed in (2, 3):
        new, old, A, mask = update(seed)
        again.global_batch_info.update(dp_size=1, batch_num_tokens=int(mask.sum()), global_batch_size=ROWS)
        loss, _ = get_policy_loss_fn("fspo")(
            old_log_prob=old, log_prob=new, advantages=A, response_mask=mask, config=again
        )
        assert float(loss) == pytest.approx(whole[seed]["loss"], rel=1e-9)
    assert pl.read_parquet(tmp_path / "records")["step"].to_list() == [1] * 2 * (ROWS - 1) + [2] * 2 * (ROWS - 1)
    assert [line.step for line in read_lines(tmp_path, Metrics)] == [1, 2]


def test_a_folder_holds_one_run(tmp_path: Path) -> None:
    rows = torch.arange(ROWS)
    train(actor("fspo", records=str(tmp_path)), rows, 1, 6, rollouts=1)
    with pytest.raises(ValueError, match="already holds a run"):
        train(actor("fspo", records=str(tmp_path)), rows, 1, 6, rollouts=1)
    with pytest.raises(ValueError, match=r"resumes from step 7 .* has no state after that step"):
        train(actor("fspo", records=str(tmp_path), checkpoints="/saved/global_step_7"), rows, 1, 6, rollouts=1)


def test_a_preempted_job_goes_on_where_verl_does(tmp_path: Path) -> None:
    """The same job three times: stopped before its first checkpoint, after it, and after a later step than that."""
    run, saved = tmp_path / "run", tmp_path / "2026"
    settings: dict[str, Any] = {"records": str(run), "checkpoints": str(saved)}
    rows, steps = torch.arange(ROWS), []
    for last in (0, 0, 2):
        saved.mkdir(exist_ok=True)
        (saved / "latest_checkpointed_iteration.txt").write_text(str(last))
        train(actor("fspo", **settings), rows, 1, 6, rollouts=3)
        steps.append([line.step for line in read_lines(run, Metrics)])
    assert steps == [[1, 2, 3], [1, 2, 3], [1, 2, 3, 4, 5]]
    assert sorted(set(pl.read_parquet(run / "records")["step"])) == steps[-1]
    with pytest.raises(ValueError, match="already holds a run"):  # another job, without a checkpoint yet
        train(actor("fspo", records=str(run), checkpoints=str(tmp_path / "other")), rows, 1, 6)


def test_verls_log_is_merged_into_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, run = tmp_path / "log.jsonl", tmp_path / "run"
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(log))
    with pytest.raises(ValueError, match=r"run verl with trainer.logger"):
        collect(log, run)
    updates = train(actor("fspo", records=str(run)), torch.arange(ROWS), 1, 6)
    logger = FileLogger("project", "experiment")
    logger.log({"val-core/openai/gsm8k/acc/mean@2": 0.25, "val-aux/openai/gsm8k/reward/mean@2": 0.5}, step=0)
    for step in (1, 2, 3):
        data = {"actor/pg_loss": 0.1, "critic/score/mean": step / 4, "response_length/mean": np.float32(7.5)}
        off = "training/off_policy/trajectory_staleness"
        lags = {f"{off}/min": (0, 1, 0)[step - 1], f"{off}/mean": (0, 1, 0.25)[step - 1]}
        lags[f"{off}_worst/max"] = (0, 1, 1)[step - 1]
        logger.log(data | lags | {"response_length/clip_ratio": 0.5, "timing_s/step": 2.0}, step=step)
    logger.finish()
    assert collect(log, run) == 3
    merged = load(run)
    assert [line.reward for line in merged.metrics] == [0.25, 0.5, 0.75]
    assert [line.truncated for line in merged.metrics] == [0.5] * 3
    assert merged.metrics[2].mu == pytest.approx(updates[5]["metrics"]["actor/fspo/mu"])
    assert [line.total for line in merged.timings] == [2.0] * 3
    assert merged.evaluations == [
        Evaluated(step=0, split="openai/gsm8k", samples=2, accuracy=0.25, reward=0.5)
    ]  # fmt: skip
    # In optimiser steps, two per version of the weights; not known where the answers of a step differ.
    ages = pl.read_parquet(run / "records").group_by("step").agg(pl.col("staleness").unique().sort()).sort("step")
    assert ages["staleness"].to_list() == [[0, 1], [2, 3], [None]]
    assert [line.model_dump()["lag"] for line in merged.metrics] == [0, 1, 0.25]
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    collect(log, run)
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert merged.objective == {"name": "fspo"}
    assert merged.facts.engine == "verl"
    assert assert_the_audit_agrees(run) > 0


def test_a_wrong_count_of_updates_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "log.jsonl"))
    train(actor("fspo", records=str(tmp_path / "run"), updates=1), torch.arange(ROWS), 1, 6, rollouts=6)
    logger = FileLogger("project", "experiment")
    for step in (1, 2, 3):  # of two updates each
        logger.log({"actor/pg_loss": 0.1}, step=step)
    logger.finish()
    with pytest.raises(ValueError, match=r"records of 6 rollouts and log.jsonl 3 steps"):
        collect(tmp_path / "log.jsonl", tmp_path / "run")
