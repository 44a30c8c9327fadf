"""A run as a job of verl: the settings of `verl.trainer.main_ppo`, its prompts, and a script to run it elsewhere.

Importing this module does not import verl, so that a dry run works without it.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from fspo import objectives
from fspo.config import TrainConfig
from fspo.engines.checkup import verl_environment
from fspo.engines.translate import (
    BAND,
    CLIP_NORM,
    PROMPT,
    RUN,
    is_chat,
    job_folder,
    refuse,
    refuse_cut,
    rows,
    start,
    start_path,
    write_job,
)
from fspo.engines.verl import OWN_OPTIONS, adv_estimator, loss_mode, refuse_layout
from fspo.settings import flat

OPEN = 1e9  # above every weight that verl computes, whose logarithm it cuts at 20
CORRECTION = "algorithm.rollout_correction"
PLAIN = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))


def overrides(config: TrainConfig, folder: Path | str, chat: bool = True, resumed: int = 0) -> dict[str, Any]:
    """verl's settings by name; `engines.verl` overrides the translation. `resumed` is the step to go on from.

    `folder` is the run folder as verl's processes see it.
    """
    refuse(config, "verl", "model.threads", "log.samples")
    own = flat(config.engines.verl)
    _check(own)
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
    trackers = {"tensorboard": log.tensorboard, "wandb": log.wandb, "trackio": log.trackio, "mlflow": log.mlflow}
    translated: dict[str, Any] = {
        "data.train_files": f"{folder}/train.parquet", "data.val_files": f"{folder}/eval.parquet",
        "data.train_batch_size": rollout.prompts, "data.shuffle": False, "data.seed": config.seed,
        "data.max_prompt_length": PROMPT, "data.max_response_length": rollout.max_new_tokens,
        "data.filter_overlong_prompts": True,
        "algorithm.adv_estimator": adv_estimator(config.advantage),
        f"{MODEL}.path": str(start_path(config, Path(folder))), f"{MODEL}.lora_rank": lora.rank if lora else 0,
        **({f"{MODEL}.lora_alpha": int(lora.alpha)} if lora else {}),
        **({} if chat else {f"{MODEL}.custom_chat_template": PLAIN}),
        **loss,
        **({f"{ROLLOUT}.calculate_log_probs": True} if own.get(f"{CORRECTION}.bypass_mode") else {}),
        f"{ACTOR}.policy_loss._target_": "fspo.engines.verl.PolicyLoss",
        f"++{ACTOR}.policy_loss.updates": update.epochs * update.minibatches,
        f"++{ACTOR}.policy_loss.records": str(folder), f"++{ACTOR}.policy_loss.checkpoints": f"{folder}/checkpoints",
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
        "reward.custom_reward_function.path": "pkg://fspo.engines.verl.run",
        "reward.custom_reward_function.name": "compute_score",
        "+reward.custom_reward_function.reward_kwargs.folder": str(folder),
        "trainer.device": config.model.device.partition(":")[0], "trainer.nnodes": 1, "trainer.n_gpus_per_node": 1,
        "trainer.total_epochs": 100, "trainer.total_training_steps": config.steps,
        "trainer.v1.separate_async.parameter_sync_step": update.minibatches,
        "trainer.test_freq": config.eval.every, "trainer.val_before_train": not resumed,
        "trainer.save_freq": config.checkpoint.every, "trainer.max_actor_ckpt_to_keep": config.checkpoint.keep,
        "trainer.default_local_dir": f"{folder}/checkpoints",
        "trainer.resume_mode": "auto",
        "trainer.project_name": log.wandb or log.trackio or log.mlflow or "fspo",
        "trainer.experiment_name": Path(folder).name, "hydra.run.dir": f"{folder}/hydra",
        "trainer.logger": ["console", "file", *(name for name, wanted in trackers.items() if wanted)],
    }  # fmt: skip
    return translated | own


def _check(own: Mapping[str, Any]) -> None:
    """Answers are drawn from the whole distribution (validation may cut it), and every rank sees the loss."""
    for key, value in own.items():
        setting, _, name = key.lstrip("+~").rpartition(".")
        if setting.startswith(ROLLOUT) and not setting.endswith("val_kwargs"):
            refuse_cut({name: value}, f"engines.verl.{setting}.")
        if setting.startswith(ACTOR):
            refuse_layout({name: value})


def mismatch(config: TrainConfig) -> dict[str, Any] | None:
    """The correction for vLLM's log-probs: the one given, else the default, else (None) what `engines.verl` says."""
    own = [key for key in flat(config.engines.verl) if key.lstrip("+~").startswith(CORRECTION)]
    given: dict[str, Any] | None = config.objective.get("mismatch")
    if own and given is not None:
        raise ValueError(f"objective.mismatch and {own[0]} in engines.verl are the same rule: give one of them")
    return None if own else config.objective.get("mismatch", BAND)


def _correction(rule: Mapping[str, Any] | None) -> dict[str, Any]:
    """verl's settings that make it compute the whole weights, from which the loss takes its own rule."""
    if rule is None:
        return {}
    level = objectives.Mismatch(**rule).level
    return {
        f"{CORRECTION}.rollout_is": level, f"{CORRECTION}.rollout_is_threshold": OPEN,
        f"{ROLLOUT}.calculate_log_probs": True,
    }  # fmt: skip


def _objective(config: TrainConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """verl's own settings for the loss, its KL penalty, entropy and sampler; and the parameters that remain."""
    parameters = {key: value for key, value in config.objective.items() if key != "mismatch"}
    name = parameters.pop("name")
    objective = objectives.get(name, **parameters)
    rule = mismatch(config)
    loss: dict[str, Any] = {f"{ACTOR}.policy_loss.loss_mode": loss_mode(name)}
    if not type(objective).__module__.startswith("fspo.objectives."):
        # A class of another package has no name that is known in every process of verl, but all can import it.
        loss = {f"{ACTOR}.policy_loss.loss_mode": "fspo"}
        parameters["name"] = f"{type(objective).__module__}:{type(objective).__qualname__}"
    if objective.kl is not None:
        if objective.kl.importance:
            raise ValueError("objective.kl.importance is not possible with --engine verl: leave it out")
        kind = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}[objective.kl.kind]
        loss |= {f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_coef": objective.kl.coef}
        loss[f"{ACTOR}.kl_loss_type"] = kind
        if objective.aggregation == "sequence_mean_of_means":  # else verl's default, a mean over tokens
            loss[f"{ACTOR}.loss_agg_mode"] = "seq-mean-token-mean"
    if objective.entropy_coef:
        loss[f"{ACTOR}.entropy_coeff"] = objective.entropy_coef
    kept = {key: value for key, value in parameters.items() if key not in OWN_OPTIONS}
    return loss | _correction(rule), kept if rule is None else kept | {"mismatch": dict(rule)}


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


def write_prompts(config: TrainConfig, folder: Path) -> None:
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


GROUPS = {  # the groups of settings in a script, by the start of their names
    "prompts, written beside this script": "data.",
    "advantages, and the correction for vLLM's log-probs": "algorithm.",
    "the model": f"{MODEL}.",
    "the loss: an objective of fspo; _target_, loss_mode and updates are required": f"{ACTOR}.policy_loss.",
    "the optimiser and its batches": f"{ACTOR}.",
    "the sampler": f"{ROLLOUT}.",
    "rewards, by the task in config.yaml": "reward.",
    "length of the run, checkpoints and logs": "trainer.",
    "everything else": "",
}


def dry_run(config: TrainConfig, folder: Path) -> str:
    """Write all that a run needs, for any machine that has verl and sees the folder; returns the script."""

    def word(key: str, value: str) -> str:
        return shlex.quote(f"{key}={value}").replace(RUN, '"$RUN"')

    settings = overrides(config, RUN, _chat(config)) | {"trainer.experiment_name": folder.name}
    words = {key: word(key, _hydra(value)) for key, value in settings.items()}
    if (first := "trainer.val_before_train") not in flat(config.engines.verl):
        words[first] = f'{first}="$([ "$START" = 0 ] && echo true || echo false)"'
    script = [
        f'sed "s|{RUN}|$RUN|g" "$RUN/job.yaml" > "$RUN/config.yaml"',
        'START=$(python -m fspo.engines.verl.run begin "$RUN")  # the step of the last checkpoint, 0 for none',
        *(f"export {word(key, value)}" for key, value in verl_environment(RUN).items()),
        "set --",
    ]
    for title, prefix in GROUPS.items():
        keys = [key for key in words if key.lstrip("+~").startswith(prefix)]
        if keys:
            script += [f"# {title}", " \\\n  ".join(['set -- "$@"', *(words.pop(key) for key in keys)])]
    script += [
        'python -m verl.trainer.main_ppo "$@"',
        'python -m fspo.engines.verl.run end "$RUN"  # rewards, times and validation from the log of verl',
        'fspo report "$RUN"',
    ]
    with job_folder(folder) as made:
        start(config, made)
        write_prompts(config, made)
        write_job(config, made, "verl", script)
    return f"# {folder / 'run.sh'}, with the prompts beside it\n{(folder / 'run.sh').read_text()}"


def _chat(config: TrainConfig) -> bool:
    """Whether prompts are turns of a chat; the tokenizer is only asked where the configuration does not say it."""
    if config.model.chat is not None:
        return config.model.chat
    if config.model.path.startswith("tiny:"):
        return False
    from transformers import AutoTokenizer

    path = Path(config.model.path)
    source = {"gguf_file": path.name} if path.suffix == ".gguf" else {}
    name = str(path.parent) if source else config.model.path
    try:
        template = AutoTokenizer.from_pretrained(name, **source).chat_template
    except OSError as error:
        raise ValueError(
            f"whether {name} has a chat template is not known, because its tokenizer cannot be loaded "
            f"({str(error).partition('. ')[0]}): set model.chat to true or false"
        ) from None
    return is_chat(config, template)
