"""The TRL engine: equal to TRL's own losses, real training, and the same result however a batch is split."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any, cast

import polars as pl
import pytest
import torch
from trl import GRPOConfig, GRPOTrainer, TrlParser

import fspo
from fspo.engines.translate import BAND, RULE
from fspo.engines.trl import FSPOConfig
from fspo.engines.trl.records import correction
from fspo.engines.trl.trainer import STATE
from fspo.objectives import Mismatch
from fspo.report.run_page import write
from fspo.runs import Metrics, Timing, load
from fspo.training.stopping import RunInterruptedError
from helpers.custom_objective import HALVED, Halved
from helpers.processes import importable, torchrun
from helpers.simulated_answers import assert_the_audit_agrees
from helpers.trl_runs import GROUP, SPLIT, answers, prompts, settings, split_runs, trainer


def losses(run: Any, inputs: list[dict[str, Any]], update: int) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss of an optimiser step by the trainer's own `_compute_loss`, and its gradients."""
    run.model.train()
    run.current_gradient_accumulation_steps = len(inputs)
    if hasattr(run, "tracker"):
        run.tracker.update = update
    total = 0.0
    for part in inputs:
        loss = run._compute_loss(run.model, dict(part))
        loss.backward()
        total += float(loss.detach())
    return total, {name: p.grad for name, p in run.model.named_parameters()}


def assert_trls(run: Any, peer: Any, inputs: list[dict[str, Any]], update: int) -> None:
    loss, gradients = losses(run, inputs, update)
    expected, their_gradients = losses(peer, inputs, update)
    assert loss == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert max(float(g.abs().max()) for g in gradients.values()) > 1e-3
    torch.testing.assert_close(gradients, their_gradients, rtol=1e-4, atol=1e-6)


SEQUENCE = {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}
# One objective per aggregation, and one per option; tests/peers has every shared objective.
SHARED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # name: settings of ours, of TRL's, and of both
    "grpo, beta": ({"objective": "grpo"}, {"loss_type": "grpo"}, {"beta": 0.1}),
    "grpo, truncated masked": ({"objective": "grpo"}, {"loss_type": "grpo"}, {"mask_truncated_completions": True}),
    "dapo, beta": (
        {"objective": "dapo"},
        {"loss_type": "dapo", "epsilon_high": 0.28},
        {"beta": 0.1, "use_bias_correction_kl": False},
    ),
    "dr_grpo": ({"objective": "dr_grpo"}, {"loss_type": "dr_grpo"}, {"scale_rewards": "none"}),
    "bnpo": ({"objective": "bnpo"}, {"loss_type": "bnpo"}, {}),
    "gspo": ({"objective": "gspo"}, {"loss_type": "grpo", **SEQUENCE}, {}),
    "luspo": ({"objective": "luspo"}, {"loss_type": "luspo", **SEQUENCE}, {}),
    "grpo, entropy": ({"objective": "grpo"}, {"loss_type": "grpo"}, {"entropy_coef": 0.2}),
}
BY_MICRO_BATCH = {"bnpo", "grpo, entropy"}  # TRL's value itself depends on the accumulation steps


@pytest.mark.parametrize("case", SHARED)
def test_loss_and_gradients_are_trls(case: str, model: Path, tmp_path: Path) -> None:
    ours, theirs, both = SHARED[case]
    accumulation = 1 if case in BY_MICRO_BATCH else 2
    common = both | {
        "per_device_train_batch_size": 16 // accumulation,
        "gradient_accumulation_steps": accumulation,
        "num_iterations": 2,
    }
    run = trainer(model, tmp_path, **ours, **common)
    peer = trainer(model, tmp_path, GRPOTrainer, GRPOConfig, **theirs, **common)
    run.model.train()
    run._prepare_inputs(next(iter(run.get_train_dataloader())))
    inputs = run._buffered_inputs
    noise = torch.Generator().manual_seed(0)
    for update, moved in ((0, 0.0), (1, 0.2)):
        for part in inputs:
            for name in ("old_per_token_logps", "ref_per_token_logps"):
                if name in part:
                    part[name] = part[name] + moved * torch.randn(part[name].shape, generator=noise)
        run.model.zero_grad()
        peer.model.zero_grad()
        assert_trls(run, peer, inputs, update)
    assert 0 < run.tracker.end_update()["clip_rate"] < 1, "both sides of the clip range must be met"


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_the_samplers_correction_is_trls(mode: str, model: Path, tmp_path: Path) -> None:
    """TRL's own code computes the weights of the answers; only the engine that would have sampled them is missing."""
    common: dict[str, Any] = {"per_device_train_batch_size": 16, "num_iterations": 2}
    rule = {"vllm_importance_sampling_mode": mode, "vllm_importance_sampling_clip_max": 1.2}
    theirs = GRPOConfig(**settings(tmp_path, loss_type="grpo", **common, **rule))
    noise = torch.Generator().manual_seed(1)

    def sampler(asked: list[str], host: Any) -> dict[str, Any]:
        sampled: dict[str, Any] = answers(asked, host)
        sampled["logprobs"] = [
            (-4 + 0.2 * torch.randn(len(ids), generator=noise)).tolist() for ids in sampled["completion_ids"]
        ]
        return sampled

    ours: dict[str, Any] = {"objective": "grpo", "objective_args": {"mismatch": correction(theirs)}}
    run = trainer(model, tmp_path, rollout_func=sampler, **ours, **common)
    assert not run.vllm_importance_sampling_correction, "TRL's own is off"
    peer = trainer(model, tmp_path, GRPOTrainer, GRPOConfig, loss_type="grpo", **common, **rule)
    for host in (run, peer):
        host.use_vllm, host._last_loaded_step, host.vllm_importance_sampling_correction = True, 0, True
        for name in rule:
            setattr(host, name, getattr(theirs, name))
    run.model.train()
    run._prepare_inputs(next(iter(run.get_train_dataloader())))
    inputs = run._buffered_inputs
    weights = inputs[0]["importance_sampling_ratio"]
    assert weights.min() < weights.max(), "the weights must differ"
    assert_trls(run, peer, inputs, 1)


def test_training_leaves_metrics_and_records(model: Path, tmp_path: Path) -> None:
    run = trainer(
        model, tmp_path, max_steps=10, num_iterations=2, steps_per_generation=4, gradient_accumulation_steps=2,
        per_device_train_batch_size=8, advantage="rloo", eval_strategy="steps", eval_steps=5, eval_dataset=prompts(4),
        per_device_eval_batch_size=8,
    )  # fmt: skip
    before = {name: p.detach().clone() for name, p in run.model.named_parameters()}
    run.train()
    assert all(not torch.equal(before[name], p) for name, p in run.model.named_parameters())
    log = [row for row in run.state.log_history if "loss" in row]
    assert [row["fspo/on_policy"] for row in log] == [1, 0, 0, 0, 1, 0, 0, 0, 1, 0]
    moved = log[-1]
    for name in ("clip_rate", "lre", "flatness", "mu", "sigma", "ess", "drift", "c_low", "c_high", "kl"):
        assert f"fspo/{name}" in moved
    assert {"fspo/clip_by_length/1", "fspo/clip_by_length/2", "entropy", "reward"} <= set(log[0]) | set(moved)
    assert any("eval_loss" in row and "eval_entropy" in row for row in run.state.log_history)
    recorded = load(tmp_path / "fspo")
    assert (recorded.name, recorded.notes) == (tmp_path.name, [])
    page = write(tmp_path / "fspo").read_text()
    assert f"<h1>{tmp_path.name}</h1>" in page
    assert 'class="alert"' not in page

    written = pl.read_parquet(tmp_path / "fspo" / "records")
    assert written.group_by("step", "update").len().sort("step", "update").rows() == [
        *((step, update, 16) for step in (1, 2) for update in range(4)), (3, 0, 16), (3, 1, 16),
    ]  # fmt: skip
    assert written.filter("off_policy")["update"].unique().sort().to_list() == [1, 2, 3]
    first = written.filter(pl.col("update") < 2)  # the first pass over each rollout: every answer once
    for (_,), part in first.group_by("step"):
        rewards = torch.tensor(part["reward"].to_list())
        expected = fspo.advantages.get("rloo")(rewards, part["index"].to_list())
        torch.testing.assert_close(torch.tensor(part["advantage"].to_list()), expected)
        assert set(part["index"]) == set(range(32 // GROUP))
    assert set(written["truncated"]) == {True, False}
    assert written.filter(pl.col("truncated"))["length"].unique().to_list() == [12]

    assert recorded.objective["name"] == fspo.objectives.DEFAULT
    assert recorded.config["trl"]["learning_rate"] == 1e-3
    assert recorded.facts.engine == "trl"
    assert [line.step for line in recorded.metrics] == [1, 2, 3]
    assert recorded.metrics[0].reward == pytest.approx(log[0]["reward"])


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    split_runs(str(model), out, batch=16, accumulation=1)
    return out


def test_an_audit_agrees_with_the_metrics(whole: Path) -> None:
    assert assert_the_audit_agrees(whole / "fspo" / "fspo") > 0
    assert_the_audit_agrees(whole / "dapo" / "fspo")


def assert_same_end(whole: Path, other: Path) -> None:
    """Weights to 2e-6 and the metrics of all updates, where lr 1e-3 has moved the weights by up to 6e-3."""
    for name in SPLIT:
        one, two = (torch.load(folder / f"{name}.pt") for folder in (whole, other))
        torch.testing.assert_close(two["weights"], one["weights"], rtol=0, atol=2e-6)
        for a, b in zip(one["log"][:-1], two["log"][:-1], strict=True):
            keys = [key for key in a if key in ("loss", "grad_norm", "reward", "entropy") or key.startswith("fspo/")]
            assert {key: b[key] for key in keys} == pytest.approx({key: a[key] for key in keys}, rel=1e-4, abs=1e-6)


def test_accumulation_changes_nothing(whole: Path, model: Path, tmp_path: Path) -> None:
    split_runs(str(model), tmp_path, batch=4, accumulation=4)
    assert_same_end(whole, tmp_path)


@pytest.mark.slow
def test_processes_change_nothing(whole: Path, model: Path, tmp_path: Path) -> None:
    torchrun(2, "helpers.trl_runs", model, tmp_path, 4, 2)
    assert_same_end(whole, tmp_path)
    one, two = (pl.read_parquet(folder / "fspo" / "fspo" / "records") for folder in (whole, tmp_path))
    columns = ["step", "update", "index", "reward", "length", "advantage"]
    assert one.select(columns).sort(columns).equals(two.select(columns).sort(columns))


def test_resume_goes_on_with_the_learnt_band(model: Path, tmp_path: Path) -> None:
    common: dict[str, Any] = {
        "objective": "fspo", "objective_args": {"clip_rate": 0.1, "drift": "bounded"}, "num_iterations": 2,
        "per_device_train_batch_size": 16, "max_steps": 6, "save_strategy": "steps", "save_steps": 4,
    }  # fmt: skip
    whole = trainer(model, tmp_path / "a", **common)
    whole.train()
    checkpoint = tmp_path / "a" / "checkpoint-4"
    learnt = json.loads((checkpoint / STATE).read_text())
    assert learnt["step"] == 2
    assert learnt["objective"]["1"]["sigma"] > 0
    written = pl.read_parquet(tmp_path / "a" / "fspo" / "records")

    again = trainer(model, tmp_path / "a", **common)
    again.train(resume_from_checkpoint=str(checkpoint))
    assert again.state.global_step == 6
    assert again.tracker.state() == whole.tracker.state()
    assert pl.read_parquet(tmp_path / "a" / "fspo" / "records").equals(written)
    (checkpoint / STATE).unlink()
    with pytest.raises(ValueError, match=r"has no fspo\.json"):
        trainer(model, tmp_path / "a", **common).train(resume_from_checkpoint=str(checkpoint))


def config(tmp_path: Path, **changed: Any) -> FSPOConfig:
    return FSPOConfig(**settings(tmp_path, per_device_train_batch_size=8, **changed))


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"loss_type": "grpo"}, "loss_type = 'grpo' is a setting of TRL's own losses"),
        ({"epsilon_high": 0.28}, "epsilon_high = 0.28"),
        ({"beta": 0.1, "objective_args": {"kl": {"coef": 0.2}}}, "both KL penalties"),
        ({"entropy_coef": 0.1, "objective_args": {"entropy_coef": 0.2}}, "the one in objective_args differ"),
        ({"advantage": "rloo", "scale_rewards": "batch"}, "scale_rewards = 'batch' does nothing with advantage"),
        ({"gradient_accumulation_steps": 4, "steps_per_generation": 2}, "cannot mix two rollouts"),
        ({"vllm_importance_sampling_mode": "token_mask"}, "vllm_importance_sampling_mode = 'token_mask'"),
        # Answers are sampled from the whole distribution.
        ({"top_p": 0.95}, "top_p = 0.95"),
        ({"vllm_structured_outputs_regex": "a+"}, "vllm_structured_outputs_regex = 'a+'"),
        ({"generation_kwargs": {"typical_p": 0.9}}, "generation_kwargs.typical_p = 0.9"),
        ({"generation_kwargs": {"temperature": 0.5}}, "generation_kwargs.temperature = 0.5"),
    ],
)
def test_a_setting_without_effect_is_refused(changed: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        config(tmp_path, **changed)
    config(tmp_path, top_p=1.0, top_k=0, generation_kwargs={"top_k": -1, "cache_implementation": "dynamic"})


def test_in_trl_the_rule_for_vllm_is_the_band_unless_it_is_changed(tmp_path: Path) -> None:
    made, other = config(tmp_path, use_vllm=True), config(tmp_path)
    assert (made.make_objective().mismatch, made.sampler_rule) == (Mismatch(**BAND), RULE)
    assert (other.make_objective().mismatch, other.sampler_rule) == (None, "")
    given = config(tmp_path, use_vllm=True, objective_args={"mismatch": {"c": 0.2}})
    assert given.make_objective().mismatch == Mismatch(c=0.2)
    for off in ({"objective_args": {"mismatch": None}}, {"vllm_importance_sampling_correction": False}):
        assert config(tmp_path, use_vllm=True, **off).make_objective().mismatch is None


def test_what_the_trainer_refuses(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="FSPOTrainer needs an FSPOConfig"):
        trainer(model, tmp_path, config=GRPOConfig, per_device_train_batch_size=8)
    with pytest.raises(ValueError, match="mismatch needs the sampler's log-probs"):
        trainer(
            model, tmp_path, per_device_train_batch_size=8, objective_args={"mismatch": {"c": 0.1}}, rollout_func=None
        )


SMALL = {
    "model": {"path": "tiny:1x32"}, "warmup": None, "task": {"name": "sort", "n_max": 5}, "steps": 3,
    "rollout": {"prompts": 4, "group": 2, "max_new_tokens": 6}, "eval": {"prompts": 4}, "checkpoint": {"every": 100},
}  # fmt: skip


@pytest.mark.slow
def test_a_signal_saves_and_a_failed_start_leaves_the_folder_free(tmp_path: Path) -> None:
    class Stop(fspo.Observer):
        def step(self, metrics: Metrics, timing: Timing) -> None:
            if metrics.step == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    folder = tmp_path / "run"
    asked = tmp_path / "rows.jsonl"
    asked.write_text("".join(json.dumps({"prompt": f"{i}:"}) + "\n" for i in range(40)))
    wrong = SMALL | {"task": {"name": "python:no_such_module:reward", "path": str(asked)}}
    with pytest.raises(ValueError, match="could not load the task"):
        fspo.train(wrong | {"model": {"path": "tiny:2x32"}}, folder, engine="trl")
    with pytest.raises(RunInterruptedError, match="stopped after step 1"):
        fspo.train(SMALL, folder, engine="trl", observer=Stop())
    run = fspo.train(None, folder, resume=True, engine="trl")
    assert [line.step for line in run.metrics] == [1, 2, 3]
    assert json.loads((folder / "model" / "config.json").read_text())["num_hidden_layers"] == 1


def test_answers_that_cannot_be_scored_are_counted_and_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Watch(fspo.Observer):
        def warn(self, text: str) -> None:
            warnings.append(text)

    warnings: list[str] = []
    (tmp_path / "half_a_reward.py").write_text(
        "def reward(prompt, completion, answer):\n    return 1 / (len(completion) % 2)\n"
    )
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"{i}:"}) + "\n" for i in range(40)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    importable(monkeypatch, tmp_path / "half_a_reward.py")
    task = {"name": "python:half_a_reward:reward", "path": str(tmp_path / "rows.jsonl")}
    run = fspo.train(SMALL | {"task": task, "steps": 2}, tmp_path / "run", engine="trl", observer=Watch())
    assert sum(line.unscored or 0 for line in run.metrics) > 0
    assert [line.unscored for line in run.metrics] == [line.unscored_by_kind.get("error", 0) for line in run.metrics]
    asked = [text for text in warnings if "could not be scored" in text]
    assert len(asked) == 2, "once for the rollouts, once for the evaluations"
    assert all("ZeroDivisionError: division by zero" in text for text in asked), asked


def test_settings_from_the_command_line(tmp_path: Path) -> None:
    arguments = ["--output_dir", str(tmp_path), "--objective", "fspo", "--objective_args", '{"clip_rate": 0.1}']
    (config,) = TrlParser(cast(Any, [FSPOConfig])).parse_args_and_config([*arguments, "--use_cpu", "--bf16", "false"])
    assert config.make_objective() == fspo.objectives.get("fspo", clip_rate=0.1)


def test_a_kl_penalty_of_ours_makes_trl_keep_a_reference(tmp_path: Path) -> None:
    config = FSPOConfig(**settings(tmp_path, objective_args={"kl": {"coef": 0.2, "kind": "k2"}}))
    assert config.beta == 0.2
    assert config.make_objective().kl == fspo.objectives.KLPenalty(coef=0.2, kind="k2")


def test_an_objective_of_another_module(model: Path, tmp_path: Path) -> None:
    parameters = {"clip_rate": 0.2}
    run = trainer(
        model, tmp_path, max_steps=2, num_iterations=2, per_device_train_batch_size=8, objective=HALVED,
        objective_args=parameters,
    )  # fmt: skip
    run.train()
    assert isinstance(run.objective, Halved)
    recorded = load(tmp_path / "fspo").objective
    assert recorded == {"name": HALVED, **parameters}
    assert fspo.objectives.get(**recorded).model_dump() == run.objective.model_dump()
