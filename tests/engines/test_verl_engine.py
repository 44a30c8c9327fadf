"""The objectives inside verl 0.9.1: equal to ours and to verl's own, whichever way a batch is split; the run folder."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

pytest.importorskip("verl")
from verl.trainer.ppo.core_algos import get_adv_estimator_fn
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
from verl.utils.tracking import FileLogger
from verl.workers.config import ActorConfig, McoreActorConfig, McoreEngineConfig, PolicyLossConfig

import fspo
from fspo.config import TrainConfig
from fspo.engines.translate import BAND
from fspo.engines.updates import UpdateTracker
from fspo.engines.verl import run
from fspo.engines.verl.plugin import PolicyLoss
from fspo.engines.verl.run import OPEN, collect
from fspo.model import loading as models
from fspo.objectives import Totals
from fspo.runs import Evaluated, Metrics, RunWarning, load, read_lines
from helpers.batches import Inputs, assert_equal, loss_by, random_batch, with_gradient
from helpers.cpu_platform import environment, worker
from helpers.custom_objective import HALVED
from helpers.processes import torchrun, write_package
from helpers.simulated_answers import assert_the_audit_agrees
from helpers.verl_ranks import CASES, ROWS, actor, call, config_of, loss_of, train, update


def caller(config: ActorConfig, batch: Inputs, **options: Any) -> Callable[..., torch.Tensor]:
    return lambda logprobs: call(config, batch, logprobs, **options)[0]


def tracker_of(config: ActorConfig) -> UpdateTracker:
    assert isinstance(config.policy_loss, PolicyLoss)
    return config.policy_loss.actor(config).tracker


# --- the losses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", fspo.objectives.names())
def test_a_registered_loss_is_ours(name: str) -> None:
    for seed in range(6):
        before, batch = random_batch(2 * seed), random_batch(2 * seed + 1)
        learning = {"drift": "kl"} if name == "fspo" else {}
        config = actor(name, learning, updates=1)
        call(config, before)  # the rollout from which the drift and an adaptive band are taken
        objective = fspo.objectives.get(name, **learning)
        known = Totals.of(*before.arguments()[:2], before.mask)
        S = ((before.logprobs - before.old_logprobs) * before.mask).sum(-1)
        objective.observe(S, before.mask.sum(-1), before.advantages, 0)
        totals = tracker_of(config).totals(len(batch.mask), float(batch.mask.sum()))
        assert totals.drift == pytest.approx(known.drift, rel=1e-9)
        ours = loss_by(objective, batch, totals=totals)
        assert_equal(ours, caller(config, batch), batch, f"{name}, batch {seed}")


MEANS = "seq-mean-token-mean"
# One per aggregation and level of the ratio; tests/peers has the others. Ours, its parameters, verl's own, its settings
# and its aggregation.
SHARED: dict[str, tuple[str, dict[str, Any], str, dict[str, Any], str]] = {
    "ppo": ("ppo", {"dual_clip": 3.0}, "vanilla", {}, "token-mean"),
    "grpo": ("grpo", {}, "vanilla", {"clip_ratio_c": 1e12}, MEANS),
    "gspo": ("gspo", {}, "gspo", {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}, MEANS),
}


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "corrected for the sampler"])
@pytest.mark.parametrize("case", SHARED)
def test_a_shared_loss_is_verls_own_on_one_rank_of_two(case: str, weighted: bool) -> None:
    """A micro-batch of a larger update: the same scale, the same weights of verl's rollout correction."""
    name, parameters, theirs_name, settings, aggregation = SHARED[case]
    for seed in range(40):
        batch = random_batch(seed)
        info = {"dp_size": 2, "batch_num_tokens": 500, "global_batch_size": 64}
        # An objective of whole responses takes one weight per response, which is verl's where it corrects sequences.
        shape = (len(batch.mask), 1) if case == "gspo" else batch.mask.shape
        weights = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        weights = weights.expand_as(batch.mask)
        options: dict[str, Any] = {"rollout_is_weights": weights} if weighted else {}
        ours_config = actor(name, parameters)
        theirs_config = config_of(PolicyLossConfig(loss_mode=theirs_name), **settings)
        for config in (ours_config, theirs_config):
            config.global_batch_info.update(info)
        theirs = caller(theirs_config, batch, loss_agg_mode=aggregation, **options)
        assert_equal(caller(ours_config, batch, **options), theirs, batch, f"{case}, batch {seed}")


def test_advantages_of_tokens_reach_the_objectives_that_take_them() -> None:
    batch = random_batch(3, positions=8)
    values = torch.randn(batch.mask.shape, dtype=torch.float64)
    loss, _ = loss_of(actor("ppo"), batch.logprobs, batch.old_logprobs, values, batch.mask)
    expected = fspo.objectives.get("ppo")(batch.logprobs, batch.old_logprobs, values, batch.mask).loss
    assert float(loss) == pytest.approx(float(expected))
    with pytest.raises(ValueError, match="weighs whole responses"):
        loss_of(actor("fspo"), batch.logprobs, batch.old_logprobs, values, batch.mask)


@pytest.mark.parametrize("name", ["fspo", "grpo"])
@pytest.mark.parametrize(
    "rule",
    [{"c": 0.3}, {"mode": "truncate", "high": 1.2}, {"level": "token", "mode": "truncate", "low": 0.8, "high": 1.2},
     {"level": "geometric", "low": 0.9, "high": 1.1}],
)  # fmt: skip
def test_verls_weights_become_the_objectives_rule(name: str, rule: dict[str, Any]) -> None:
    """verl's own code computes the weights, uncut; the loss and its gradient are those of the objective by itself."""
    for seed in range(10):
        batch: Inputs = random_batch(seed)
        level = run._objective(TrainConfig(objective={"name": name, "mismatch": rule}))[0][
            f"{run.CORRECTION}.rollout_is"
        ]
        log_weights = batch.old_logprobs - batch.sampler_logprobs
        weights, _ = compute_rollout_correction_weights(log_weights, batch.mask.double(), level, OPEN)
        made = actor(name, {"mismatch": rule})
        rows = len(batch.mask)
        made.global_batch_info.update(dp_size=1, global_batch_size=rows, batch_num_tokens=int(batch.mask.sum()))
        loss, gradient = with_gradient(caller(made, batch, rollout_is_weights=weights), batch)
        plain = loss_by(fspo.objectives.get(name, mismatch=rule), batch, sampler_logprobs=batch.sampler_logprobs)
        expected, expected_gradient = with_gradient(plain, batch)
        assert float(loss) == pytest.approx(float(expected), rel=1e-9, abs=1e-12)
        torch.testing.assert_close(gradient, expected_gradient)


# --- ranks and micro-batches -----------------------------------------------------------------------------------------


def same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-9, abs=1e-12)
        np.testing.assert_allclose(a["gradient"], b["gradient"], rtol=1e-9, atol=1e-12)
        assert a["metrics"] == pytest.approx(b["metrics"], rel=1e-9, abs=1e-9)


def test_neither_a_call_under_no_grad_nor_a_batch_without_a_trained_token_is_recorded() -> None:
    batch, config = random_batch(0), actor("fspo", updates=1)
    with torch.no_grad():
        loss, metrics = call(config, batch)
    tracker = tracker_of(config)
    assert (math.isfinite(loss), metrics, tracker.step, tracker.update) == (True, {}, 1, 0)
    batch.mask[:] = False
    loss, metrics = call(config, batch, batch.logprobs.requires_grad_())
    (gradient,) = torch.autograd.grad(loss, batch.logprobs)
    assert (loss.item(), bool(gradient.any()), metrics, tracker.step) == (0, False, {}, 2)


def test_a_full_disk_does_not_stop_the_training(tmp_path: Path) -> None:
    (tmp_path / "updates.jsonl").symlink_to("/dev/full")
    with pytest.warns(RunWarning, match="cannot be written"):
        assert len(train(actor("fspo", records=str(tmp_path)), torch.arange(ROWS), 1, ROWS)) == 6


@pytest.mark.slow
def test_two_ranks_give_the_same_updates_as_one(tmp_path: Path) -> None:
    """Real processes on gloo; verl averages their gradients and losses."""
    torchrun(2, "helpers.verl_ranks", tmp_path, env=environment(str(tmp_path)))
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    rows = torch.arange(ROWS)
    for k, case in enumerate(CASES):
        one = train(actor(*case), rows, 1, ROWS)
        first, second = (rank["ranks"][k] for rank in ranks)
        both = [
            a | {key: np.mean([a[key], b[key]], axis=0) for key in ("loss", "gradient")}
            for a, b in zip(first, second, strict=True)
        ]
        same(one, both)
        assert [a["metrics"] for a in first] == [b["metrics"] for b in second], case
    losses = [a["loss"] for a in train(actor("fspo"), rows, 1, ROWS)]
    assert [a["loss"] for a in ranks[1]["last_stage"]] == pytest.approx(losses, rel=1e-9)
    # Rows that several ranks share count once.
    one = train(actor("fspo", {"drift": "kl"}, records=str(tmp_path / "one")), rows, 1, 5)
    same(one, ranks[0]["shared"])
    shared, alone = (pl.read_parquet(tmp_path / name / "records") for name in ("shared", "one"))
    assert shared.equals(alone)
    assert len(alone) == 6 * (ROWS - 1)


@pytest.mark.parametrize(("name", "value"), [("pipeline_model_parallel_size", 2), ("dynamic_context_parallel", True)])
def test_layouts_in_which_ranks_differ_are_refused_before_the_first_update(name: str, value: Any) -> None:
    settings: dict[str, Any] = {name: value, "max_seqlen_per_dp_cp_rank": 64}
    batch = random_batch(0)
    for stateless in (False, True):
        policy = PolicyLoss(updates=2, stateless=stateless, objective={"name": "fspo"})
        config = McoreActorConfig(
            rollout_n=1, ppo_micro_batch_size_per_gpu=1, policy_loss=policy, megatron=McoreEngineConfig(**settings)
        )
        if stateless:
            assert math.isfinite(call(config, batch)[0])
        else:
            with pytest.raises(ValueError, match=rf"{name} = .* is possible with policy_loss.stateless=true only"):
                call(config, batch)


@pytest.mark.parametrize("objective", [{}, {"drift": -0.01}])
def test_without_state_ranks_may_have_any_share_of_the_rows(objective: dict[str, Any]) -> None:
    """As under dynamic context parallelism: unequal shares, and a data-parallel size of 1. No update is ever closed."""
    config, whole = actor("fspo", objective, updates=0, stateless=True), actor("fspo", objective)
    for seed in range(3):
        new, old, A, mask = update(seed)
        info = {"dp_size": 1, "batch_num_tokens": int(mask.sum()), "global_batch_size": ROWS}
        losses = []
        for loss_config, parts in ((whole, [torch.arange(ROWS)]), (config, [torch.arange(5), torch.arange(5, ROWS)])):
            loss_config.global_batch_info.update(info)
            total = 0.0
            for part in parts:
                loss, metrics = loss_of(loss_config, new[part], old[part], A[part], mask[part])
                total += float(loss)
            losses.append(total)
        assert losses[0] == pytest.approx(losses[1], rel=1e-12)
        assert metrics.keys() == {"actor/fspo/clip_rate"}
    tracker = tracker_of(config)
    assert (tracker.step, tracker.update, tracker._parts) == (1, 0, [])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    models.save(models.load("tiny:2x64"), folder)
    return folder


@pytest.mark.slow
def test_verls_worker_trains_the_same_on_one_and_two_fsdp_ranks(model: Path, tmp_path: Path) -> None:
    """FSDP2 on gloo, several rollouts: the drift that the last updates use was learnt from all ranks' rows.

    The objective is one of another module, picked by name through Hydra.
    """
    outputs = []
    for processes, micro in ((1, 8), (2, 2)):
        overrides = [
            "actor_rollout_ref.actor.policy_loss.loss_mode=fspo",
            "+actor_rollout_ref.actor.policy_loss.updates=4",
            f"+actor_rollout_ref.actor.policy_loss.objective={{name:'{HALVED}',drift:kl}}",
            f"+actor_rollout_ref.actor.policy_loss.records={tmp_path / str(processes)}",
        ]
        settings = {"model": str(model), "micro": micro, "overrides": overrides}
        outputs.append(worker(tmp_path, f"run-{processes}", processes, **settings))
    one, two = outputs
    assert len(one) == 3
    for a, b in zip(one, two, strict=True):
        assert a.keys() == b.keys()
        assert len(a["loss"]) == 4
        for key in ("loss", "grad_norm", "actor/fspo/mu", "actor/fspo/drift", "actor/fspo/clip_rate"):
            assert a[key] == pytest.approx(b[key], rel=1e-3, abs=1e-5), key
    assert any(one[2]["actor/fspo/drift"])
    assert one[2]["actor/fspo/drift"][1:] == pytest.approx(one[1]["actor/fspo/mu"][1:], rel=1e-12)
    rows = [pl.read_parquet(tmp_path / str(n) / "records").sort("step", "update", "advantage") for n in (1, 2)]
    assert rows[0].select("step", "update", "length").equals(rows[1].select("step", "update", "length"))
    assert len(rows[0]) == 3 * 2 * 15  # without the row of padding
    for processes in (1, 2):
        assert_the_audit_agrees(tmp_path / str(processes))


# --- advantages ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", fspo.advantages.names())
def test_advantages_are_ours(name: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        groups = np.repeat(np.arange(5), rng.integers(1, 6, 5))
        rng.shuffle(groups)
        n = len(groups)
        rewards = torch.tensor(rng.choice([0.0, 0.5, 1.0], n))
        # With two rows of padding in a group of their own, as verl adds them.
        token_rewards, mask = torch.zeros(n + 2, 9, dtype=torch.float64), torch.zeros(n + 2, 9, dtype=torch.long)
        mask[:n] = torch.tensor(rng.random((n, 9)) < 0.7)
        mask[:n, 2] = 1
        token_rewards[:n, 2] = rewards
        uids = np.array([f"uid-{g}" for g in groups] + ["pad", "pad"], dtype=object)
        A, returns = get_adv_estimator_fn(f"fspo.{name}")(
            token_level_rewards=token_rewards, response_mask=mask, config=None, index=uids
        )
        expected = fspo.advantages.get(name)(rewards, torch.tensor(groups), lengths=mask[:n].sum(-1))
        torch.testing.assert_close(A[:n], expected.unsqueeze(-1) * mask[:n])
        assert not A[n:].any()
        torch.testing.assert_close(returns, A)


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"loss_mode": "gspo"}, "is not a loss of fspo: set loss_mode=fspo"),
        ({"updates": 0}, "updates = 0 must be the optimiser steps per rollout"),
        ({"objective": {"c_lwo": 0.1}}, "did you mean 'c_low'"),
        ({"objective": {"kl": {"coef": 0.1}}}, "set actor_rollout_ref.actor.use_kl_loss instead"),
        ({"checkpoints": "saved"}, "checkpoints needs policy_loss.records"),
        ({"loss_mode": "fspo.measure:gspo"}, "needs policy_loss.records"),
        ({"loss_mode": "fspo.measure:gsop", "records": "run"}, "Unsupported loss mode: gsop"),
        ({"stateless": True, "records": "run"}, "leave policy_loss.records out"),
        ({"stateless": True}, "fspo_gate learns its band.* keeps no state: set clip_rate"),
        ({"stateless": True, "objective": {"name": "fspo", "drift": "kl"}}, "give drift='zero' or a number"),
    ],
)
def test_parameters_are_checked_when_they_are_given(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        PolicyLoss(**{"updates": 2} | settings)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (actor("fspo", clip_ratio_high=0.28), "actor.clip_ratio_high = 0.28 has no effect on fspo"),
        (
            actor("fspo", loss_agg_mode="seq-mean-token-mean"),
            "actor.loss_agg_mode = 'seq-mean-token-mean' has no effect",
        ),
        (actor("fspo", ppo_epochs=3), "updates = 2 must be a multiple of ppo_epochs = 3"),
        (actor("fspo", {"mismatch": BAND}), r"set algorithm\.rollout_correction\.rollout_is=sequence"),
        (config_of(PolicyLossConfig(loss_mode="fspo")), r"policy_loss._target_=fspo.engines.verl.PolicyLoss"),
    ],
)
def test_settings_of_the_actor_that_do_not_fit_the_loss_are_refused(config: ActorConfig, sentence: str) -> None:
    batch = random_batch(0)
    with pytest.raises(ValueError, match=sentence):
        call(config, batch)
    call(actor("fspo", loss_agg_mode=MEANS, use_kl_loss=True), batch)  # of verl's terms


def test_more_rows_than_an_update_has_are_refused() -> None:
    config, batch = actor("fspo"), random_batch(0, rows=8)
    config.global_batch_info.update(dp_size=2, batch_num_tokens=100, global_batch_size=8)
    with pytest.raises(RuntimeError, match="8 rows of an update whose global_batch_size is 8 on 2 ranks"):
        call(config, batch)


@pytest.mark.slow
def test_verl_finds_the_plug_in_by_its_entry_point(tmp_path: Path) -> None:
    """And the objectives of other packages with it; importing it must not import what verl does not need."""
    write_package(tmp_path, "this_plug_in", "", "verl.plugins", {"fspo": "fspo.engines.verl.plugin"})
    write_package(tmp_path, "other_objective", "", "fspo.objectives", {"halved": HALVED})
    code = (
        "import sys, verl; from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY;"
        "assert 'fspo' in POLICY_LOSS_REGISTRY and 'fspo.rloo' in ADV_ESTIMATOR_REGISTRY;"
        "assert POLICY_LOSS_REGISTRY['gspo'].__module__.startswith('verl.');"
        "assert not {'fspo.training', 'fspo.engines.updates', 'polars', 'helpers'} & set(sys.modules);"
        "from fspo.engines.verl import PolicyLoss;"
        "assert PolicyLoss(objective={'name': 'halved'}, updates=1).build().reference_length == 2"
    )
    variables = environment(str(tmp_path))
    del variables["VERL_USE_EXTERNAL_MODULES"], variables["VERL_PLATFORM"]
    variables["PYTHONPATH"] = f"{tmp_path}:{variables['PYTHONPATH']}"
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


# --- the run folder: a resumed run goes on from it, and verl's own log is merged into it ------------------------------


def test_a_resumed_run_goes_on_with_what_was_learnt(tmp_path: Path) -> None:
    rows, case = torch.arange(ROWS), ("fspo", {"clip_rate": 0.3, "drift": "bounded"})
    whole = train(actor(*case), rows, 1, 6)
    train(actor(*case, records=str(tmp_path)), rows, 1, 6, rollouts=2)  # the second of them after its checkpoint
    again = actor(*case, records=str(tmp_path), checkpoints=str(tmp_path / "global_step_1"))
    for ours, theirs in zip(train(again, rows, 1, ROWS, rollouts=1, first=2), whole[2:4], strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-9)
    assert pl.read_parquet(tmp_path / "records")["step"].to_list() == [1] * 2 * (ROWS - 1) + [2] * 2 * (ROWS - 1)
    assert [line.step for line in read_lines(tmp_path, Metrics)] == [1, 2]


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
    others: list[dict[str, Any]] = [{}, {"checkpoints": str(tmp_path / "other")}]  # another job, no checkpoint yet
    for other in others:
        with pytest.raises(ValueError, match="already holds a run"):
            train(actor("fspo", records=str(run), **other), rows, 1, 6)
    with pytest.raises(ValueError, match=r"resumes from step 7 .* has no state after that step"):
        train(actor("fspo", records=str(run), checkpoints="/saved/global_step_7"), rows, 1, 6)


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
        logger.log(data | lags | {"response_length/clip_ratio": 0.6, "timing_s/step": 2.0}, step=step)
    logger.finish()
    assert collect(log, run) == 3
    merged = load(run)
    assert [line.reward for line in merged.metrics] == [0.25, 0.5, 0.75]
    assert [(line.truncated, "truncated" in line.warnings) for line in merged.metrics] == [(0.6, True)] * 3
    assert merged.metrics[2].mu == pytest.approx(updates[5]["metrics"]["actor/fspo/mu"])
    assert [line.total for line in merged.timings] == [2.0] * 3
    assert merged.evaluations == [Evaluated(step=0, split="openai/gsm8k", samples=2, accuracy=0.25, reward=0.5)]
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
