"""`fspo train --engine verl`: the same configuration as a run of `verl.trainer.main_ppo`.

The command that a dry run prints can be given to any Ray cluster that reads the run's folder. Prompts are written as
verl's Parquet files, and verl's reward workers call `compute_score`, which asks the task.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from fspo import objectives, tasks
from fspo.engines.translate import chats, place, refuse, rows, start
from fspo.local import config as configuration
from fspo.local.config import TrainConfig
from fspo.local.loop import Nobody, Observer, RunInterruptedError, claim
from fspo.local.records import Records
from fspo.tasks.scoring import Scorer

MISSING = {
    "rollout.staleness": "use verl's asynchronous trainers, by engines.verl",
    "rollout.dynamic": "use algorithm.filter_groups, by engines.verl",
    "rollout.cache_gib": "give actor_rollout_ref.rollout.gpu_memory_utilization in engines.verl",
    "update.max_skipped": "verl does not count updates without a finite gradient",
    "model.threads": "set OMP_NUM_THREADS",
    "log.bins": "its records have 6 bins of length",
    "log.cosine": "only the local engine takes the gradients of each bin of length",
    "log.records": "its records are always written",
    "log.samples": "verl writes answers to trainer.rollout_data_dir, by engines.verl",
}
PROMPT = 1024  # longest prompt in tokens; verl needs a number
PLAIN = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))


def overrides(config: TrainConfig, folder: Path, chat: bool = True, resumed: int = 0) -> dict[str, Any]:
    """verl's settings by name. What `engines.verl` says goes over the translation."""
    refuse(config, "verl", MISSING)
    update, rollout, lora = config.update, config.rollout, config.model.lora
    if update.schedule == "linear":
        raise ValueError("update.schedule = 'linear' is not possible with --engine verl: use constant or cosine")
    if update.token_budget < PROMPT + rollout.max_new_tokens:
        raise ValueError(
            f"update.token_budget = {update.token_budget} must be at least {PROMPT + rollout.max_new_tokens} with "
            "--engine verl: a micro-batch holds the longest prompt and answer"
        )
    if lora and lora.alpha % 1:
        raise ValueError(f"model.lora.alpha = {lora.alpha} is not possible with --engine verl: use a whole number")
    kind, parameters = _objective(config)
    precision = "fp32" if config.model.dtype == "float32" else "bf16"
    log = config.log
    trackers = {"tensorboard": log.tensorboard, "wandb": log.wandb, "trackio": log.trackio}
    found: dict[str, Any] = {
        "data.train_files": str(folder / "train.parquet"), "data.val_files": str(folder / "eval.parquet"),
        "data.train_batch_size": rollout.prompts, "data.shuffle": False, "data.seed": config.seed,
        "data.max_prompt_length": PROMPT, "data.max_response_length": rollout.max_new_tokens,
        "algorithm.adv_estimator": f"fspo.{config.advantage}",
        f"{MODEL}.path": place(config, folder), f"{MODEL}.lora_rank": lora.rank if lora else 0,
        **({f"{MODEL}.lora_alpha": int(lora.alpha)} if lora else {}),
        **({} if chat else {f"{MODEL}.custom_chat_template": PLAIN}),
        **kind,
        f"{ACTOR}.policy_loss._target_": "fspo.engines.verl.PolicyLoss",
        f"++{ACTOR}.policy_loss.updates": update.epochs * update.minibatches,
        f"++{ACTOR}.policy_loss.records": str(folder), f"++{ACTOR}.policy_loss.start": resumed,
        f"++{ACTOR}.policy_loss.objective": parameters,
        f"{ACTOR}.strategy": "fsdp2", f"{ACTOR}.ppo_epochs": update.epochs,
        f"{ACTOR}.ppo_mini_batch_size": rollout.prompts // update.minibatches,
        f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": update.token_budget,
        f"{ACTOR}.shuffle": True, f"{ACTOR}.data_loader_seed": config.seed,
        f"{ACTOR}.optim.lr": update.lr, f"{ACTOR}.optim.betas": list(update.betas),
        f"{ACTOR}.optim.weight_decay": update.weight_decay, f"{ACTOR}.optim.clip_grad": update.clip_norm,
        f"{ACTOR}.optim.lr_scheduler_type": update.schedule, f"{ACTOR}.optim.lr_warmup_steps": update.lr_warmup,
        f"++{ACTOR}.fsdp_config.mixed_precision.param_dtype": precision,
        f"++{ACTOR}.fsdp_config.mixed_precision.reduce_dtype": "fp32",
        f"{ROLLOUT}.name": "vllm", f"{ROLLOUT}.n": rollout.group, f"{ROLLOUT}.temperature": rollout.temperature,
        f"{ROLLOUT}.dtype": config.model.dtype, f"{ROLLOUT}.seed": config.seed,
        f"{ROLLOUT}.tensor_model_parallel_size": 1, f"{ROLLOUT}.val_kwargs.n": config.eval.samples,
        f"{ROLLOUT}.val_kwargs.temperature": config.eval.temperature,
        f"{ROLLOUT}.val_kwargs.do_sample": config.eval.temperature > 0,
        "reward.custom_reward_function.path": __file__, "reward.custom_reward_function.name": "compute_score",
        "+reward.custom_reward_function.reward_kwargs.folder": str(folder),
        "trainer.device": config.model.device.partition(":")[0], "trainer.nnodes": 1, "trainer.n_gpus_per_node": 1,
        "trainer.total_epochs": 1, "trainer.total_training_steps": config.steps,
        "trainer.test_freq": config.eval.every, "trainer.val_before_train": not resumed,
        "trainer.save_freq": config.checkpoint.every, "trainer.max_actor_ckpt_to_keep": config.checkpoint.keep,
        "trainer.default_local_dir": str(folder / "checkpoints"),
        "trainer.resume_mode": "auto" if resumed else "disable",
        "trainer.project_name": log.wandb or log.trackio or "fspo",
        "trainer.experiment_name": folder.name,
        "trainer.logger": ["console", "file", *(name for name, wanted in trackers.items() if wanted)],
    }  # fmt: skip
    return found | _flat(config.engines.verl)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tables within tables as names with dots, so that both ways of writing a setting are the same one."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def _objective(config: TrainConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """verl's own settings for the loss, its KL penalty and entropy; and the parameters that remain."""
    parameters = dict(config.objective)
    name = parameters.pop("name")
    objective = objectives.get(name, **parameters)
    found: dict[str, Any] = {f"{ACTOR}.policy_loss.loss_mode": name if name.startswith("fspo") else f"fspo.{name}"}
    if objective.kl is not None:
        if objective.kl.importance:
            raise ValueError("objective.kl.importance is not possible with --engine verl: leave it out")
        kind = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}[objective.kl.kind]
        found |= {f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_coef": objective.kl.coef}
        found[f"{ACTOR}.kl_loss_type"] = kind
    if objective.entropy_coef:
        found[f"{ACTOR}.entropy_coeff"] = objective.entropy_coef
    return found, {key: value for key, value in parameters.items() if key not in ("kl", "entropy_coef")}


def command(settings: Mapping[str, Any]) -> list[str]:
    """How verl is started with these settings."""
    return [
        sys.executable,
        "-m",
        "verl.trainer.main_ppo",
        *(f"{key}={_hydra(value)}" for key, value in settings.items()),
    ]


def _hydra(value: Any) -> str:
    """A value in the grammar of hydra's overrides."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_hydra(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_hydra, value)) + "]"
    if isinstance(value, str) and not re.fullmatch(r"[\w./+%@-]+", value):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return json.dumps(value) if not isinstance(value, str) else value


def environment(folder: Path) -> dict[str, str]:
    """What verl reads from the environment: our module in every process, and where its log goes."""
    modules = os.environ.get("VERL_USE_EXTERNAL_MODULES", "")
    return {
        "VERL_USE_EXTERNAL_MODULES": ",".join(filter(None, [modules, "fspo.engines.verl"])),
        "VERL_FILE_LOGGER_PATH": str(folder / "verl.jsonl"),
    }


def describe(config: TrainConfig, folder: Path) -> str:
    """What a dry run prints: a command for a shell."""
    words = command(overrides(config, folder.absolute()))
    settings = [f"{key}={shlex.quote(value)}" for key, value in environment(folder.absolute()).items()]
    return " \\\n  ".join([*settings, shlex.join(["python", *words[1:3]]), *map(shlex.quote, words[3:])])


def train(config: TrainConfig, folder: Path, *, resume: bool = False, observer: Observer | None = None) -> None:
    """Run `config` on verl and bring what it logged into the run's folder."""
    from transformers import AutoTokenizer

    from fspo.engines.verl_log import collect

    folder, watcher = folder.absolute(), observer or Nobody()
    overrides(config, folder)  # refuses before anything is written
    claim(folder, resume)
    configuration.write(config, folder / "config.yaml")
    chat = chats(config, AutoTokenizer.from_pretrained(start(config, folder)).chat_template)
    _prompts(config, folder)
    latest = folder / "checkpoints" / "latest_checkpointed_iteration.txt"
    resumed = int(latest.read_text()) if resume and latest.is_file() else 0
    Records(folder, keep_rows=True).cut(resumed)  # what came after the checkpoint is written again
    words = command(overrides(config, folder, chat, resumed) | {f"{MODEL}.path": start(config, folder)})
    watcher.note(f"verl writes to {folder / 'verl.log'}")
    with (folder / "verl.log").open("a") as log:
        process = subprocess.Popen(
            words, env=os.environ | environment(folder), cwd=folder, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            code = _follow(process, folder / "metrics.jsonl", watcher)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait()
            collect(folder / "verl.jsonl", folder)
            step = int(latest.read_text()) if latest.is_file() else 0
            raise RunInterruptedError(step) from None
    if code:
        raise ValueError(f"verl ended with exit code {code}: the reason is at the end of {folder / 'verl.log'}")
    collect(folder / "verl.jsonl", folder)


def _follow(process: subprocess.Popen[bytes], metrics: Path, watcher: Observer) -> int:
    """Tell whoever watches of every rollout whose updates are over, until verl ends."""
    told = len(metrics.read_text().splitlines()) if metrics.is_file() else 0
    while True:
        try:
            return process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            lines = metrics.read_text().split("\n")[:-1] if metrics.is_file() else []  # whole lines
            for line in lines[told:]:
                watcher.step(json.loads(line), {})
            told = max(told, len(lines))


def _prompts(config: TrainConfig, folder: Path) -> None:
    """The prompts as verl reads them."""
    for name, spec, split, count in (
        ("train", config.task, "train", config.steps * config.rollout.prompts),
        ("eval", config.eval_task, config.eval.split, config.eval.prompts),
    ):
        table = [
            {
                "data_source": row["task"], "prompt": [{"role": "user", "content": row["prompt"]}],
                "reward_model": {"style": "rule", "ground_truth": json.dumps([split, row["index"]])},
                "extra_info": {"index": row["index"]},
            }
            for row in rows(spec, split, count)
        ]  # fmt: skip
        pl.DataFrame(table).write_parquet(folder / f"{name}.parquet")


@functools.cache
def _scorer(folder: str, split: str) -> tuple[tasks.Task, Scorer]:
    """The task of a run, and processes that score it as long as this one lives."""
    config = configuration.read(Path(folder) / "config.yaml", [])
    task = tasks.get(config.task if split == "train" else config.eval_task)
    return task, Scorer(task, 1, config.scoring.timeout, config.scoring.memory_mb)


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, folder: str = "", **_: Any
) -> dict[str, float]:
    """verl's reward of an answer. It has no word for one that could not be scored: that gets 0, and is counted."""
    split, index = json.loads(ground_truth)
    task, scorer = _scorer(folder, split)
    value = scorer.score([task.example(split, index)], [solution_str])[0].value
    return {"score": value or 0.0, "acc": float(value is not None and value >= 1), "unscored": float(value is None)}
