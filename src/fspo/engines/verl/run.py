"""`fspo train --engine verl`: the same configuration as a run of `verl.trainer.main_ppo`.

The prompts become verl's Parquet files in the run folder, and verl's reward workers call `reward.compute_score`, which
asks the task. Importing this module does not import verl, so that a dry run works without it.
"""

from __future__ import annotations

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

from fspo import objectives
from fspo.config import TrainConfig
from fspo.engines.translate import CLIP_NORM, is_chat, place, refuse, rows, start
from fspo.engines.verl.log import collect
from fspo.engines.verl.names import OWN_OPTIONS, adv_estimator, loss_mode
from fspo.runs import Metrics, NullObserver, Observer, RunWriter, Timing, claimed, read_lines
from fspo.settings import flat
from fspo.training.stopping import RunInterruptedError

MISSING = {
    "rollout.staleness": "set up verl's asynchronous trainer in engines.verl",
    "rollout.dynamic": "set algorithm.filter_groups in engines.verl",
    "rollout.cache_gib": "set actor_rollout_ref.rollout.gpu_memory_utilization in engines.verl",
    "update.clip_ratio": "set update.clip_norm, a fixed limit",
    "update.all_rows": "verl computes every answer",
    "update.max_skipped": "verl does not count updates without a finite gradient",
    "model.threads": "set OMP_NUM_THREADS",
    "log.bins": "its metrics have the default number of bins",
    "log.cosine": "only the local engine takes the gradients of each bin of length",
    "log.records": "its rows are always written",
    "log.samples": "set trainer.rollout_data_dir in engines.verl, where verl writes answers",
}
PROMPT = 1024  # longest prompt in tokens; verl needs a number
PLAIN = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))


def overrides(config: TrainConfig, folder: Path, chat: bool = True, resumed: int = 0) -> dict[str, Any]:
    """verl's settings by name; `engines.verl` overrides the translation. `resumed` is the step to go on from."""
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
    loss, parameters = _objective(config)
    precision = "fp32" if config.model.dtype == "float32" else "bf16"
    log = config.log
    trackers = {"tensorboard": log.tensorboard, "wandb": log.wandb, "trackio": log.trackio}
    found: dict[str, Any] = {
        "data.train_files": str(folder / "train.parquet"), "data.val_files": str(folder / "eval.parquet"),
        "data.train_batch_size": rollout.prompts, "data.shuffle": False, "data.seed": config.seed,
        "data.max_prompt_length": PROMPT, "data.max_response_length": rollout.max_new_tokens,
        "algorithm.adv_estimator": adv_estimator(config.advantage),
        f"{MODEL}.path": place(config, folder), f"{MODEL}.lora_rank": lora.rank if lora else 0,
        **({f"{MODEL}.lora_alpha": int(lora.alpha)} if lora else {}),
        **({} if chat else {f"{MODEL}.custom_chat_template": PLAIN}),
        **loss,
        f"{ACTOR}.policy_loss._target_": "fspo.engines.verl.PolicyLoss",
        f"++{ACTOR}.policy_loss.updates": update.epochs * update.minibatches,
        f"++{ACTOR}.policy_loss.records": str(folder), f"++{ACTOR}.policy_loss.start": resumed,
        f"++{ACTOR}.policy_loss.objective": parameters,
        f"{ACTOR}.strategy": "fsdp2", f"{ACTOR}.ppo_epochs": update.epochs,
        f"{ACTOR}.ppo_mini_batch_size": rollout.prompts // update.minibatches,
        f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": update.token_budget,
        f"{ACTOR}.shuffle": True, f"{ACTOR}.data_loader_seed": config.seed,
        f"{ACTOR}.optim.lr": update.lr, f"{ACTOR}.optim.betas": list(update.betas),
        f"{ACTOR}.optim.weight_decay": update.weight_decay, f"{ACTOR}.optim.clip_grad": update.clip_norm or CLIP_NORM,
        f"{ACTOR}.optim.lr_scheduler_type": update.schedule, f"{ACTOR}.optim.lr_warmup_steps": update.lr_warmup,
        f"++{ACTOR}.fsdp_config.mixed_precision.param_dtype": precision,
        f"++{ACTOR}.fsdp_config.mixed_precision.reduce_dtype": "fp32",
        f"{ROLLOUT}.name": "vllm", f"{ROLLOUT}.n": rollout.group, f"{ROLLOUT}.temperature": rollout.temperature,
        f"{ROLLOUT}.dtype": config.model.dtype, f"{ROLLOUT}.seed": config.seed,
        f"{ROLLOUT}.tensor_model_parallel_size": 1, f"{ROLLOUT}.val_kwargs.n": config.eval.samples,
        f"{ROLLOUT}.val_kwargs.temperature": config.eval.temperature,
        f"{ROLLOUT}.val_kwargs.do_sample": config.eval.temperature > 0,
        "reward.custom_reward_function.path": str(Path(__file__).with_name("reward.py")),
        "reward.custom_reward_function.name": "compute_score",
        "+reward.custom_reward_function.reward_kwargs.folder": str(folder),
        "trainer.device": config.model.device.partition(":")[0], "trainer.nnodes": 1, "trainer.n_gpus_per_node": 1,
        "trainer.total_epochs": 1, "trainer.total_training_steps": config.steps,
        "trainer.test_freq": config.eval.every, "trainer.val_before_train": not resumed,
        "trainer.save_freq": config.checkpoint.every, "trainer.max_actor_ckpt_to_keep": config.checkpoint.keep,
        "trainer.default_local_dir": str(folder / "checkpoints"),
        "trainer.resume_mode": "auto" if resumed else "disable",
        "trainer.project_name": log.wandb or log.trackio or "fspo",
        "trainer.experiment_name": folder.name, "hydra.run.dir": str(folder / "hydra"),
        "trainer.logger": ["console", "file", *(name for name, wanted in trackers.items() if wanted)],
    }  # fmt: skip
    return found | flat(config.engines.verl)


def _objective(config: TrainConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """verl's own settings for the loss, its KL penalty and entropy; and the parameters that remain."""
    parameters = dict(config.objective)
    name = parameters.pop("name")
    objective = objectives.get(name, **parameters)
    if objective.mismatch is not None:
        raise ValueError(
            f"objective.mismatch is not possible with --engine verl: set {OWN_OPTIONS['mismatch']} in engines.verl"
        )
    found: dict[str, Any] = {f"{ACTOR}.policy_loss.loss_mode": loss_mode(name)}
    if not type(objective).__module__.startswith("fspo.objectives."):
        # A class of another package has no name that is known in every process of verl, but all can import it.
        found = {f"{ACTOR}.policy_loss.loss_mode": "fspo"}
        parameters["name"] = f"{type(objective).__module__}:{type(objective).__qualname__}"
    if objective.kl is not None:
        if objective.kl.importance:
            raise ValueError("objective.kl.importance is not possible with --engine verl: leave it out")
        kind = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}[objective.kl.kind]
        found |= {f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_coef": objective.kl.coef}
        found[f"{ACTOR}.kl_loss_type"] = kind
        if objective.aggregation == "sequence_mean_of_means":  # else verl's default, a mean over tokens
            found[f"{ACTOR}.loss_agg_mode"] = "seq-mean-token-mean"
    if objective.entropy_coef:
        found[f"{ACTOR}.entropy_coeff"] = objective.entropy_coef
    return found, {key: value for key, value in parameters.items() if key not in OWN_OPTIONS}


def command(settings: Mapping[str, Any]) -> list[str]:
    """The command that starts verl with these settings."""
    words = [f"{key}={_hydra(value)}" for key, value in settings.items()]
    return [sys.executable, "-m", "verl.trainer.main_ppo", *words]


def _hydra(value: Any) -> str:
    """A value in the grammar of Hydra's overrides."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_hydra(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_hydra, value)) + "]"
    if isinstance(value, str) and not re.fullmatch(r"[\w./+%@-]+", value):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return json.dumps(value) if not isinstance(value, str) else value


def environment(folder: Path) -> dict[str, str]:
    """What verl reads from the environment: the plug-in to import in every process, and where its logs go."""
    modules = os.environ.get("VERL_USE_EXTERNAL_MODULES", "")
    return {
        "VERL_USE_EXTERNAL_MODULES": ",".join(filter(None, [modules, "fspo.engines.verl.plugin"])),
        "VERL_FILE_LOGGER_PATH": str(folder / "verl.jsonl"),
        "TENSORBOARD_DIR": str(folder / "tensorboard"),
    }


def describe(config: TrainConfig, folder: Path) -> str:
    """What a dry run prints: the command, for a shell."""
    words = command(overrides(config, folder.absolute()))
    settings = [f"{key}={shlex.quote(value)}" for key, value in environment(folder.absolute()).items()]
    return " \\\n  ".join([*settings, shlex.join(["python", *words[1:3]]), *map(shlex.quote, words[3:])])


def train(config: TrainConfig, folder: Path, *, resume: bool = False, observer: Observer | None = None) -> None:
    """Run `config` on verl and merge verl's log into the run folder; with `resume`, go on from its last checkpoint."""
    from transformers import AutoTokenizer

    folder, observer = folder.absolute(), observer or NullObserver()
    overrides(config, folder)  # refuses before anything is written
    with claimed(folder, resume=resume):
        checkpoints = folder / "checkpoints"
        resumed = _last_step(checkpoints) if resume else 0
        if resumed:
            _collect(folder)  # verl begins a new log
        writer = RunWriter(folder)
        writer.cut(resumed or -1)  # later steps are written again
        writer.describe(config.model_dump(mode="json"), engine="verl")
        tokenizer = AutoTokenizer.from_pretrained(start(config, folder, observer.warmup))
        _write_prompts(config, folder)
        words = command(overrides(config, folder, is_chat(config, tokenizer.chat_template), resumed))
        observer.note(f"verl writes to {folder / 'verl.log'}")
        with (folder / "verl.log").open("a") as log:
            # In the working directory of this process, so that relative paths and modules are found.
            process = subprocess.Popen(words, env=os.environ | environment(folder), stdout=log, stderr=log)
            try:
                code = _follow(process, folder, observer)
            except KeyboardInterrupt:
                process.send_signal(signal.SIGINT)
                process.wait()
                _collect(folder)
                raise RunInterruptedError(_last_step(checkpoints)) from None
        if code:
            raise ValueError(f"verl ended with exit code {code}: the reason is at the end of {folder / 'verl.log'}")
        collect(folder / "verl.jsonl", folder)


def _collect(folder: Path) -> None:
    """Merge verl's log into the run folder, if verl came as far as to begin one."""
    if (folder / "verl.jsonl").is_file():
        collect(folder / "verl.jsonl", folder)


def _last_step(checkpoints: Path) -> int:
    """The step of verl's last checkpoint; 0 for none."""
    path = checkpoints / "latest_checkpointed_iteration.txt"
    return int(path.read_text()) if path.is_file() else 0


def _follow(process: subprocess.Popen[bytes], folder: Path, observer: Observer) -> int:
    """Tell the observer about every step that is done, until verl ends; returns its exit code."""
    told = len(read_lines(folder, Metrics))
    size = 0
    while True:
        try:
            code = process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            code = None
        path = folder / f"{Metrics.file}.jsonl"
        if path.is_file() and path.stat().st_size != size:
            size = path.stat().st_size
            lines = read_lines(folder, Metrics)
            for metrics in lines[told:]:
                observer.step(metrics, Timing(step=metrics.step))
            told = max(told, len(lines))
        if code is not None:
            return code


def _write_prompts(config: TrainConfig, folder: Path) -> None:
    """The prompts as verl reads them: train.parquet and eval.parquet."""
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
