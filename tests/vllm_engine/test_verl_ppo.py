"""`fspo train --engine verl`: verl's own trainer on a local Ray cluster, with verl's own vLLM server, on CPU."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest
import torch
import yaml
from safetensors.torch import load_file

import fspo
from fspo.runs import load
from fspo.runs import rows as row_files
from helpers.cpu_platform import environment
from helpers.small_recipes import RECIPES, overrides

STEPS, PROMPTS, SAMPLES, UPDATES = 3, 8, 4, 2

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed"),
    pytest.mark.timeout(12_000),  # each takes minutes on two quiet cores
]

# What verl needs on a machine without accelerators, beside the platform.
CPU = {
    "data.max_prompt_length": 256, "data.dataloader_num_workers": 0,
    "actor_rollout_ref.model.use_remove_padding": False,
    "actor_rollout_ref.model.enable_gradient_checkpointing": False,
    "+actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
    "actor_rollout_ref.actor.use_torch_compile": False,
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile": False,
    "actor_rollout_ref.actor.fsdp_config.param_offload": False,
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload": False,
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
    "actor_rollout_ref.rollout.enforce_eager": True, "actor_rollout_ref.rollout.free_cache_engine": False,
    "+actor_rollout_ref.rollout.enable_sleep_mode": False, "actor_rollout_ref.rollout.load_format": "auto",
    "actor_rollout_ref.rollout.max_model_len": 512, "actor_rollout_ref.rollout.max_num_seqs": 64,
    "actor_rollout_ref.rollout.max_num_batched_tokens": 2048,
    "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes": 64,
    "actor_rollout_ref.rollout.agent.num_workers": 1, "reward.num_workers": 1,
    "algorithm.filter_groups.enable": False,  # a random model solves nothing: every group would be replaced for ever
    "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1, "trainer.n_gpus_per_node": 1,
    "ray_kwargs.ray_init.num_cpus": 12, "+ray_kwargs.ray_init.num_gpus": 1,
    "+ray_kwargs.ray_init._node_ip_address": "127.0.0.1", "+ray_kwargs.ray_init.include_dashboard": False,
}  # fmt: skip

# One process trains and one samples; verl's own ways for the weights between them need accelerators.
ASYNC = {
    "actor_rollout_ref.rollout.n_gpus_per_node": 1, "+ray_kwargs.ray_init.num_gpus": 2,
    "actor_rollout_ref.rollout.checkpoint_engine.backend": "file",
    "actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module": "helpers.file_checkpoint_engine",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder with a short name, for the sockets in it."""
    path = Path(tempfile.mkdtemp(prefix="v", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def end_session(leader: int, patience: float = 15) -> None:
    """Wait for all processes of this session, then kill what is left of it, each by its id."""
    end = time.monotonic() + patience
    while (left := members(leader)) and time.monotonic() < end:
        time.sleep(0.5)
    for process in left:
        process.kill()
    psutil.wait_procs(left, timeout=10)


def members(leader: int) -> list[psutil.Process]:
    left = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                left.append(process)
        except (psutil.Error, ProcessLookupError):
            continue
    return left


def train(folder: Path, run: Path, config: Path, settings: list[str], more: dict[str, Any] | None = None) -> None:
    """The command, in a session of its own of which nothing is left; `more` are settings of verl."""
    own = yaml.safe_load(config.read_text()).get("engines", {}).get("verl", {}) | CPU | (more or {})
    command = [sys.executable, "-m", "fspo", "train", str(config), *settings, f"engines.verl={json.dumps(own)}"]
    command += ["--engine", "verl", "--out", str(run)]
    variables = {
        "RAY_TMPDIR": str(folder), "VLLM_RPC_BASE_PATH": str(folder), "VLLM_CACHE_ROOT": f"{folder}/vllm",
        "XDG_CACHE_HOME": f"{folder}/cache", "VLLM_HOST_IP": "127.0.0.1", "FSPO_CACHE": f"{folder}/warm",
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1",
        "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "HYDRA_FULL_ERROR": "1",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_worker_niceness": "0",
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "12000",
    }  # fmt: skip
    output = run.with_suffix(".txt")
    with output.open("w") as file:
        trainer = subprocess.Popen(
            command, env=environment(str(folder)) | variables, cwd=folder, stdout=file, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = trainer.wait(timeout=12_000)
        finally:
            if trainer.poll() is None:
                trainer.kill()
                trainer.wait()
            end_session(trainer.pid)
    log = run / "verl.log"
    assert code == 0, output.read_text() + (log.read_text()[-6000:] if log.exists() else "")


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    """A run of a small model that solves some of its prompts, so that it learns and is clipped."""
    config = folder / "sort.yaml"
    config.write_text("task: sort\n")
    settings = [
        "model.path=tiny:1x32", "task={name: sort, n_min: 2, n_max: 8, letters: 4}",
        "warmup={solved: 0.4, max_steps: 600, check_every: 10, prompts: 128}", f"steps={STEPS}",
        f"rollout.prompts={PROMPTS}", f"rollout.group={SAMPLES}", "rollout.max_new_tokens=10", "update.epochs=1",
        f"update.minibatches={UPDATES}", "update.lr=2e-4", "update.schedule=constant", "eval.prompts=32",
        "objective={name: fspo, c_low: 0.01, c_high: 0.01}",
    ]  # fmt: skip
    train(folder, folder / "run", config, settings)
    return folder / "run"


def test_it_trains_and_every_response_is_recorded(run: Path) -> None:
    rows = pl.read_parquet(run / "records")
    assert len(rows) == STEPS * PROMPTS * SAMPLES
    counts = rows.group_by("step", "update").len().sort("step", "update")
    assert counts["step"].to_list() == [1, 1, 2, 2, 3, 3]
    assert set(counts["len"]) == {PROMPTS * SAMPLES // UPDATES}
    assert set(rows["length"]) <= set(range(1, 11))
    first, second = rows.filter(update=0), rows.filter(update=1)
    assert max(abs(value) for value in first["log_ratio"]) < 1e-3  # sampled by this policy: rounding only
    assert max(abs(value) for value in second["log_ratio"]) > 1e-2  # a step away from it
    assert set(second["off_policy"]) == {True}
    assert set(first["accepted"]) == {1}
    assert {0, 1} <= set(second["accepted"])
    # Leave-one-out advantages of a group add up to nothing.
    for step in range(1, STEPS + 1):
        assert abs(sum(rows.filter(step=step)["advantage"])) < 1e-4


def test_its_metrics_are_in_verls_log(run: Path) -> None:
    lines = [json.loads(line) for line in (run / "verl.jsonl").read_text().splitlines()]
    steps = {line["step"]: line["data"] for line in lines if "actor/pg_loss" in line["data"]}
    assert sorted(steps) == [1, 2, 3]
    rows = pl.read_parquet(run / "records")
    for step, data in steps.items():
        mine = rows.filter(step=step)
        pulled = mine.filter(pl.col("advantage") != 0).group_by("update").agg(rate=1 - pl.col("accepted").mean())
        assert data["actor/fspo/clip_rate"] == pytest.approx(pulled["rate"].mean(), abs=1e-6)
        assert data["response_length/mean"] == pytest.approx(mine["length"].mean())
        assert data["actor/grad_norm"] > 0
        assert "rollout_corr/rollout_is_mean" in data  # verl has computed the sampler's weights
        assert data["actor/fspo/mismatch_outside"] < 0.5


def test_its_records_feed_the_report(run: Path) -> None:
    text = (run / "report.html").read_text()
    for shown in ("Clip rate by length, and other ranges", "Held-out accuracy", "Training reward"):
        assert shown in text, shown
    read = load(run)
    assert read.facts.engine == "verl"
    assert row_files.read(run, ["step"]).height == STEPS * PROMPTS * SAMPLES
    rows = pl.read_parquet(run / "records").filter(pl.col("off_policy") & (pl.col("advantage") != 0))
    assert len(rows)
    for line in read.metrics:
        assert line.reward is not None
        assert 0 <= line.reward <= 1
        assert (line.lre is not None) == bool(len(rows.filter(step=line.step)))  # where clipping could act
        assert line.lre is None or line.lre >= 0
    assert [(line.step, line.split) for line in read.evaluations] == [(0, "sort"), (STEPS, "sort")]
    assert (read.evaluations[0].accuracy or 0) > 0


def test_its_shards_are_merged_and_exported(run: Path, folder: Path) -> None:
    with pytest.raises(ValueError, match="in shards of verl") as refused:
        fspo.export(run, folder / "model")
    words = str(refused.value).partition("repeat this: python ")[2].split()
    subprocess.run([sys.executable, *words], env=environment(str(folder)), check=True)
    trained = load_file(fspo.export(run, folder / "model") / "model.safetensors")
    start = load_file(run / "start" / "model.safetensors")
    assert trained.keys() == start.keys()
    assert any(not torch.equal(trained[name].float(), start[name]) for name in start)


def test_answers_are_sampled_and_trained_on_at_the_same_time(folder: Path, tmp_path: Path) -> None:
    run, settings = folder / "async", overrides("qwen3-1.7b-math-async", tmp_path)
    train(folder, run, RECIPES / "qwen3-1.7b-math-async.yaml", [*settings, "steps=3"], ASYNC)
    rows = pl.read_parquet(run / "records")
    assert rows.group_by("step", "update").len().sort("step", "update")["len"].to_list() == [4] * 6
    lines = load(run).metrics
    lags = [(line.model_dump()["lag"], line.model_dump()["lag_max"]) for line in lines]
    assert [line.step for line in lines] == [1, 2, 3]
    assert lags[0] == (0, 0)
    assert max(worst for _, worst in lags) >= 1  # a batch is sampled ahead
    for (mean, worst), line in zip(lags, lines, strict=True):
        ages = rows.filter(step=line.step)
        known = ages["update"] + 2 * int(worst) if mean == worst else [None] * len(ages)
        assert ages["staleness"].to_list() == list(known)
    # Old log-probs are of the weights that the step began with.
    assert max(abs(S) for S in rows.filter(update=0)["log_ratio"]) < 1e-3


def test_a_recipe_with_adapters_runs(folder: Path, tmp_path: Path) -> None:
    """The other recipes have nothing of verl's that this one or the asynchronous one has not."""
    train(folder, folder / "gsm8k", RECIPES / "gsm8k-24gb.yaml", overrides("gsm8k-24gb", tmp_path))
    rows = pl.read_parquet(folder / "gsm8k" / "records")
    assert rows["step"].unique().sort().to_list() == [1, 2]
    assert len(rows) == 2 * 8
    assert [line.step for line in load(folder / "gsm8k").evaluations] == [0, 2]
