"""Losses that are not ours, recorded: training is the same to the bit, and the audit answers. See docs/measure.md."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import polars as pl
import pytest
import torch
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer, SFTTrainer

import fspo
from fspo.engines.trl import FSPOTrainer, recorded
from fspo.runs import load, read_lines
from fspo.runs.schema import Metrics
from helpers.async_grpo import async_inputs, async_trainer, forward
from helpers.pages import blocks
from helpers.simulated_answers import assert_the_audit_agrees
from helpers.trl_runs import prompts, reward, settings, trainer

DOCS = Path(__file__).parents[2] / "docs" / "measure.md"


def scripts(place: int, out: Path) -> Iterator[tuple[str, Path]]:
    """A script of the page before and after its change of at most ten lines, each with a folder to run in."""
    lines = [block.text for block in blocks(DOCS) if block.language == "diff"][place].splitlines()
    assert sum(line[0] == "+" for line in lines) <= 10
    for k, sign in enumerate("-+"):
        (out / str(k)).mkdir()
        yield "\n".join(line[1:] for line in lines if line[0] in f" {sign}"), out / str(k)


def weights(run: Any) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in run.model.named_parameters()}


def assert_same_bits(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


# --- a PyTorch loop ---------------------------------------------------------------------------------------------------


def test_a_loop_of_ones_own(tmp_path: Path) -> None:
    saved = []
    for script, folder in scripts(0, tmp_path):
        (folder / "loop.py").write_text(script)
        subprocess.run([sys.executable, "loop.py"], cwd=folder, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        saved.append(torch.load(folder / "weights.pt"))
    assert torch.equal(*saved)
    assert assert_the_audit_agrees(tmp_path / "1" / "runs" / "mine") > 0.1
    run = load(tmp_path / "1" / "runs" / "mine")
    assert (run.objective, len(run.metrics)) == ({"name": "gspo"}, 10)


# --- TRL --------------------------------------------------------------------------------------------------------------


def test_the_documented_change_of_a_trl_script(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = []
    for script, folder in scripts(1, tmp_path):
        monkeypatch.chdir(folder)
        names: dict[str, Any] = {"model": str(model), "reward": reward, "dataset": prompts(4)}
        here = "num_iterations=2, use_cpu=True, bf16=False, max_completion_length=12, max_steps=8, learning_rate=1e-3"
        exec(script.replace("num_iterations=2", here), names)
        names["trainer"].train()
        ends.append(weights(names["trainer"]))
    assert_same_bits(*ends)
    assert fspo.audit("out").own is not None


# Settings of TRL's loss, and the rule that they mean.
LOSSES: dict[str, tuple[dict[str, Any], str]] = {
    "token": ({"loss_type": "dapo", "epsilon": 0.005, "epsilon_high": 0.008}, "ppo"),
    "token, delta": ({"loss_type": "grpo", "epsilon": 0.005, "delta": 1.01}, "ppo"),
    "sequence": ({"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 1e-3}, "gspo"),
    "sequence, delta": ({"importance_sampling_level": "sequence", "epsilon": 1e-3, "delta": 1.01}, ""),
    "cispo": ({"loss_type": "cispo", "epsilon_high": 5.0}, "cispo"),
    "sapo": ({"loss_type": "sapo"}, "sapo"),
    "vespo": ({"loss_type": "vespo"}, "vespo"),
}


@pytest.mark.parametrize("case", LOSSES)
def test_what_trls_loss_clips_is_what_its_settings_say(
    case: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorded share is that of the tokens to which TRL's own loss gives a gradient."""
    changed, rule = LOSSES[case]
    run = trainer(
        model, tmp_path, recorded(GRPOTrainer), GRPOConfig, per_device_train_batch_size=16, num_iterations=2, **changed
    )  # fmt: skip
    run.model.train()
    run.current_gradient_accumulation_steps = 1
    inputs = run._prepare_inputs(next(iter(run.get_train_dataloader())))
    shape = inputs["completion_mask"].shape
    inputs["old_per_token_logps"] = -4 + 0.01 * torch.randn(shape, generator=torch.Generator().manual_seed(0))
    inputs["sampling_per_token_logps"] = inputs["old_per_token_logps"] - 0.01
    logprobs = (-4 + 0.01 * torch.randn(shape, generator=torch.Generator().manual_seed(1))).requires_grad_()
    computed = logprobs, torch.zeros(shape), None
    monkeypatch.setattr(GRPOTrainer, "_get_per_token_logps_and_entropies", lambda *_, **__: computed)
    loss = run._compute_loss(run.model, inputs)
    run.recorder.flush()
    rows = pl.read_parquet(tmp_path / "fspo" / "records")
    assert rows["mismatch"].to_list() == pytest.approx([0.01 * L for L in rows["length"]], rel=1e-3)
    if not rule:
        assert rows["accepted"].null_count() == 16
        return
    assert load(tmp_path / "fspo").objective["name"] == rule
    (gradient,) = torch.autograd.grad(loss, logprobs)
    mask = inputs["completion_mask"].bool()
    passed = ((gradient != 0) & mask).sum(-1) / mask.sum(-1)
    taught = inputs["advantages"] != 0
    if rule in ("ppo", "gspo"):
        torch.testing.assert_close(torch.tensor(rows["accepted"].to_list())[taught], passed[taught])
        assert 0 < float(passed[taught].mean()) < 1
    else:
        objective = fspo.objectives.get(rule)
        out = objective(logprobs, inputs["old_per_token_logps"], inputs["advantages"], mask)
        torch.testing.assert_close(torch.tensor(rows["accepted"].to_list()), out.accepted.detach())


@pytest.mark.parametrize("trainer", [int, SFTTrainer, FSPOTrainer, recorded(GRPOTrainer)])
def test_what_cannot_be_recorded_is_refused(trainer: type) -> None:
    with pytest.raises(ValueError, match=r"recorded takes GRPOTrainer, .* or a subclass without records, not <class"):
        recorded(trainer)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_grpo_training_is_the_same_and_has_metrics(accumulation: int, model: Path, tmp_path: Path) -> None:
    common: dict[str, Any] = {
        "max_steps": 7, "num_iterations": 2, "per_device_train_batch_size": 8, "steps_per_generation": 2 * accumulation,
        "gradient_accumulation_steps": accumulation, "epsilon": 0.005, "beta": 0.01,
    }  # fmt: skip
    plain = trainer(model, tmp_path / "plain", GRPOTrainer, GRPOConfig, **common)
    run = trainer(model, tmp_path / "run", recorded(GRPOTrainer), GRPOConfig, **common)
    assert isinstance(run, GRPOTrainer)
    for each in (plain, run):
        torch.manual_seed(0)
        each.train()
    assert_same_bits(weights(plain), weights(run))
    logs = [row for row in run.state.log_history if "loss" in row]
    assert [row["fspo/on_policy"] for row in logs] == [1, 0, 0, 0, 1, 0, 0]
    assert {"fspo/clip_rate", "fspo/lre", "fspo/mu", "fspo/sigma", "fspo/ess", "fspo/clip_by_length/2"} <= set(logs[-1])
    assert [row["loss"] for row in logs] == [row["loss"] for row in plain.state.log_history if "loss" in row]
    lines = read_lines(tmp_path / "run" / "fspo", Metrics)
    assert [(line.step, line.updates) for line in lines] == [(1, 4), (2, 3)]
    assert lines[0].reward == pytest.approx(logs[0]["reward"])
    assert assert_the_audit_agrees(tmp_path / "run" / "fspo") > 0


def test_rloo_training_is_the_same_and_is_recorded(model: Path, tmp_path: Path) -> None:
    ends = []
    for name, kind in (("plain", RLOOTrainer), ("run", recorded(RLOOTrainer, str(tmp_path / "records")))):
        options = settings(tmp_path / name, max_steps=6, num_iterations=3, per_device_train_batch_size=8, epsilon=0.02)
        run = kind(str(model), cast(Any, reward), RLOOConfig(**options), prompts())
        torch.manual_seed(0)
        run.train()
        ends.append(weights(run))
    assert_same_bits(*ends)
    assert load(tmp_path / "records").objective == {"name": "rloo", "clip_low": 0.02, "clip_high": 0.02}
    clipped = [row["clip_ratio/region_mean"] for row in run.state.log_history if "loss" in row]
    rows = pl.read_parquet(tmp_path / "records" / "records")
    kept = rows.group_by("step", "update").agg(pl.col("accepted").mean()).sort("step", "update")["accepted"]
    assert (1 - kept).to_list() == pytest.approx(clipped)  # TRL's own, over the same rows
    assert max(clipped) > 0


def test_trls_async_trainer_is_recorded(tmp_path: Path) -> None:
    """Real collator and loss, and a model of 30 weights: the trainer as a whole needs a GPU and a vLLM server."""
    from trl.experimental.async_grpo.async_grpo_trainer import AsyncGRPOTrainer

    ends = []
    for kind in (AsyncGRPOTrainer, recorded(AsyncGRPOTrainer)):
        run, inputs = async_trainer(kind), async_inputs()
        run.args = SimpleNamespace(output_dir=str(tmp_path), to_dict=dict)
        run.state, run.model = SimpleNamespace(global_step=0), SimpleNamespace(config=SimpleNamespace(_name_or_path=""))
        values = (torch.arange(30, dtype=torch.float32) / 20 - 0.5).requires_grad_()
        optimizer = torch.optim.SGD([values], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            run.compute_loss(forward(values), inputs).backward()
            optimizer.step()
        ends.append(values.detach())
    assert torch.equal(*ends)
    rows = pl.read_parquet(tmp_path / "fspo" / "records")
    assert rows["length"].to_list() == 3 * [2, 8, 4, 13]  # without the token that a tool wrote
    assert rows["advantage"][:4].to_list() == pytest.approx([1.0, -0.5, 0.7, -1.2])
    clipped = run._metrics["train"]["clip_ratio/region_mean"]
    kept = rows.group_by("step").agg(pl.col("accepted").dot("length") / pl.col("length").sum()).sort("step")["accepted"]
    assert (1 - kept).to_list() == pytest.approx(clipped, abs=1e-6)
    assert fspo.audit(tmp_path).own is not None


# --- verl -------------------------------------------------------------------------------------------------------------


RULES = {"gspo": "gspo", "vanilla": "ppo", "sapo": None, "clip_cov": None, "gpg": None, "geo_mean": None}


@pytest.mark.parametrize("name", RULES)
def test_any_loss_of_verl_is_recorded_unchanged(name: str, tmp_path: Path) -> None:
    from verl.workers.config import PolicyLossConfig

    from fspo.engines.verl import PolicyLoss
    from helpers.verl_ranks import ROWS, config_of, train, update

    losses = (
        PolicyLossConfig(loss_mode=name),
        PolicyLoss(loss_mode=f"fspo.measure:{name}", updates=2, records=str(tmp_path)),
    )
    clipped: dict[str, Any] = {"clip_ratio_low": 0.05, "clip_ratio_high": 0.05}
    theirs, ours = (
        train(config_of(loss, **clipped), torch.arange(ROWS), 1, micro=8, rollouts=2) for loss in losses
    )  # fmt: skip
    assert [u["gradient"] for u in ours] == [u["gradient"] for u in theirs]
    metrics = ours[-1]["metrics"]
    assert theirs[-1]["metrics"].items() <= metrics.items()
    assert {"actor/fspo/clip_rate", "actor/fspo/lre", "actor/fspo/clip_by_length/1"} <= metrics.keys()
    rows = pl.read_parquet(tmp_path / "records")
    assert rows.group_by("step", "update").len()["len"].to_list() == 4 * [23]  # without the row of padding
    rule = RULES[name]
    if rule is not None:
        clip = {"clip_low": 0.05, "clip_high": 0.05} | ({"dual_clip": 3.0} if rule == "ppo" else {})
        new, old, A, mask = update(3)
        out = fspo.objectives.get(rule, **clip)(new, old, A[:, 0].clone(), mask)
        last = rows.filter(step=2, update=1)["accepted"].to_list()
        torch.testing.assert_close(torch.tensor(last), out.accepted[out.lengths > 0].float())
        assert 0 < sum(last) < 23
    assert fspo.audit(tmp_path).own is not None


@pytest.mark.slow
def test_verls_worker_trains_the_same_with_the_documented_settings(model: Path, tmp_path: Path) -> None:
    from helpers.cpu_platform import worker

    (block,) = [block for block in blocks(DOCS) if "fspo.measure:gspo" in block.text and block.language == "text"]
    added = block.text.replace("$PWD", str(tmp_path)).splitlines()
    assert len(added) <= 10
    loss = "actor_rollout_ref.actor.policy_loss"
    theirs = [f"{loss}._target_=verl.workers.config.PolicyLossConfig", f"{loss}.loss_mode=gspo"]
    common = [f"actor_rollout_ref.actor.clip_ratio_{side}=0.0005" for side in ("low", "high")]
    ends = []
    for name, lines in (("plain", theirs), ("measured", added)):
        logged = worker(tmp_path, name, model=str(model), micro=4, overrides=[*common, *lines])
        ends.append(torch.load(tmp_path / f"{name}.json.pt"))
    assert torch.equal(*ends)
    assert len(logged[-1]["actor/fspo/clip_rate"]) == 4
    assert assert_the_audit_agrees(tmp_path / "run") > 0
