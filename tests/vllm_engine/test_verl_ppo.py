"""verl's own trainer, end to end on a local Ray cluster with verl's own vLLM server, trains with FSPO."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import psutil
import pytest

from cpu_platform import environment
from fspo.engines.verl_log import collect
from fspo.local import models
from fspo.report.load import load

STEPS, PROMPTS, SAMPLES, UPDATES = 3, 8, 4, 2
HERE = Path(__file__).parent

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]  # two or three minutes on two quiet cores

SETTINGS = f"""
data.train_batch_size={PROMPTS} data.max_prompt_length=16 data.max_response_length=24 data.dataloader_num_workers=0
actor_rollout_ref.model.use_remove_padding=False actor_rollout_ref.model.enable_gradient_checkpointing=False
+actor_rollout_ref.model.override_config.attn_implementation=sdpa
actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.actor.optim.lr=1e-4
actor_rollout_ref.actor.ppo_mini_batch_size={PROMPTS // UPDATES} actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8
actor_rollout_ref.actor.use_torch_compile=False actor_rollout_ref.actor.fsdp_config.use_torch_compile=False
+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32
+actor_rollout_ref.actor.fsdp_config.mixed_precision.reduce_dtype=fp32
actor_rollout_ref.actor.policy_loss._target_=fspo.engines.verl.PolicyLoss
actor_rollout_ref.actor.policy_loss.loss_mode=fspo +actor_rollout_ref.actor.policy_loss.updates={UPDATES}
+actor_rollout_ref.actor.policy_loss.objective.c_low=0.01 +actor_rollout_ref.actor.policy_loss.objective.c_high=0.01
algorithm.adv_estimator=fspo.rloo
actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.tensor_model_parallel_size=1
actor_rollout_ref.rollout.n={SAMPLES} actor_rollout_ref.rollout.dtype=float32
actor_rollout_ref.rollout.enforce_eager=True actor_rollout_ref.rollout.free_cache_engine=False
+actor_rollout_ref.rollout.enable_sleep_mode=False actor_rollout_ref.rollout.load_format=auto
actor_rollout_ref.rollout.max_model_len=64 actor_rollout_ref.rollout.max_num_seqs=64
actor_rollout_ref.rollout.max_num_batched_tokens=2048
actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=64
actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.rollout.agent.num_workers=1
reward.num_workers=1 reward.custom_reward_function.path={HERE / "rewards_verl.py"}
reward.custom_reward_function.name=compute_score transfer_queue.backend.SimpleStorage.num_data_storage_units=1
trainer.device=cpu trainer.n_gpus_per_node=1 trainer.nnodes=1 trainer.total_training_steps={STEPS}
trainer.logger=[console,file] trainer.val_before_train=False trainer.test_freq={STEPS} trainer.save_freq=-1
trainer.resume_mode=disable ray_kwargs.ray_init.num_cpus=12 +ray_kwargs.ray_init.num_gpus=1
+ray_kwargs.ray_init._node_ip_address=127.0.0.1 +ray_kwargs.ray_init.include_dashboard=False
""".split()


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
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, ProcessLookupError):
            continue
    return found


def _model_and_data(folder: Path) -> None:
    policy = models.load("tiny:2x64")
    policy.tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    models.save(policy, folder / "model")
    rows = [
        {
            "data_source": "sums", "ability": "sums", "prompt": [{"role": "user", "content": f"{i % 10}+{i // 10}="}],
            "reward_model": {"style": "rule", "ground_truth": str(i % 10 + i // 10)}, "extra_info": {"index": i},
        }
        for i in range(32)
    ]  # fmt: skip
    pl.DataFrame(rows).write_parquet(folder / "train.parquet")
    pl.DataFrame(rows[:8]).write_parquet(folder / "test.parquet")


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    """The folder of the records, after `python -m verl.trainer.main_ppo`."""
    _model_and_data(folder)
    records = folder / "run"
    command = [
        sys.executable, "-m", "verl.trainer.main_ppo", *SETTINGS, f"data.train_files={folder}/train.parquet",
        f"data.val_files={folder}/test.parquet", f"actor_rollout_ref.model.path={folder}/model",
        f"trainer.default_local_dir={folder}/checkpoints", f"hydra.run.dir={folder}/hydra",
        f"+actor_rollout_ref.actor.policy_loss.records={records}",
    ]  # fmt: skip
    own = {
        "VERL_FILE_LOGGER_PATH": f"{folder}/log.jsonl", "RAY_TMPDIR": str(folder), "VLLM_RPC_BASE_PATH": str(folder),
        "VLLM_CACHE_ROOT": f"{folder}/vllm", "XDG_CACHE_HOME": f"{folder}/cache", "VLLM_HOST_IP": "127.0.0.1",
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1",
        "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "HYDRA_FULL_ERROR": "1",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    }  # fmt: skip
    output = folder / "output.txt"
    with output.open("w") as file:
        trainer = subprocess.Popen(
            command, env=environment(str(folder)) | own, cwd=folder, stdout=file, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = trainer.wait(timeout=1200)
        finally:
            if trainer.poll() is None:
                trainer.kill()
                trainer.wait()
            end_session(trainer.pid)
    assert code == 0, output.read_text()[-6000:]
    return records


def test_it_trains_and_every_answer_is_recorded(run: Path) -> None:
    rows = pl.read_parquet(run / "records")
    assert len(rows) == STEPS * PROMPTS * SAMPLES
    counts = rows.group_by("step", "update").len().sort("step", "update")
    assert counts["step"].to_list() == [1, 1, 2, 2, 3, 3]
    assert set(counts["len"]) == {PROMPTS * SAMPLES // UPDATES}
    assert rows["length"].min() >= 1
    assert rows["length"].max() <= 24
    first, second = rows.filter(update=0), rows.filter(update=1)
    assert first["log_ratio"].abs().max() < 1e-3  # sampled by this policy: rounding alone
    assert second["log_ratio"].abs().max() > 1e-2  # a step away from it
    assert first["accepted"].min() == 1
    assert 0 < second["accepted"].mean() < 1
    # Leave-one-out advantages of a group add up to nothing.
    assert rows.group_by("step").agg(pl.col("advantage").sum())["advantage"].abs().max() < 1e-4


def test_its_metrics_are_in_verls_log(run: Path, folder: Path) -> None:
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    steps = {line["step"]: line["data"] for line in lines if "actor/pg_loss" in line["data"]}
    assert sorted(steps) == [1, 2, 3]
    rows = pl.read_parquet(run / "records")
    for step, data in steps.items():
        mine = rows.filter(step=step)
        assert data["actor/fspo/clip_rate"] == pytest.approx(1 - mine["accepted"].mean(), abs=1e-6)
        assert data["response_length/mean"] == pytest.approx(mine["length"].mean())
        assert data["actor/grad_norm"] > 0


def test_its_records_feed_the_report(run: Path, folder: Path) -> None:
    assert collect(folder / "log.jsonl", run) == STEPS
    command = [sys.executable, "-m", "fspo.cli", "report", str(run)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    text = (run / "report.html").read_text()
    for shown in ("Clip rate by length, last steps", "Held-out accuracy", "Training reward"):
        assert shown in text, shown
    read = load(run)
    assert read.records is not None
    assert read.records.rows == STEPS * PROMPTS * SAMPLES
    assert all(0 <= row["reward"] <= 1 and row["lre"] >= 0 for row in read.metrics)
    assert [row["split"] for row in read.evaluations] == ["sums"]
