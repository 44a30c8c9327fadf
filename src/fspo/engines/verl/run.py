"""`fspo train --engine verl`: the same configuration as a run of `verl.trainer.main_ppo`.

The settings become verl's (`overrides`), the prompts verl's Parquet files in the run folder; verl's reward workers call
`compute_score`, which asks the task, and `collect` merges verl's own log into the run folder, as
`python -m fspo.engines.verl.run FOLDER` does for any other job. verl is not imported with this module: a dry run works
without it.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from fspo import objectives, tasks
from fspo.config import TrainConfig, is_chat, read
from fspo.engines import translate
from fspo.engines.translate import BAND, CLIP_NORM, PROMPT, RULE, loggers, rows
from fspo.engines.verl import last_step, refuse_own_options
from fspo.files import BadLine, json_lines
from fspo.runs import Evaluated, Metrics, Observer, RunWriter, Timing, claimed, read_lines
from fspo.runs import rows as row_files
from fspo.runs.recorder import warnings_of
from fspo.settings import flat
from fspo.tasks.scoring import Scorer
from fspo.training.stopping import RunInterruptedError, interrupts

OPEN = 1e9  # above every weight that verl computes, whose logarithm it cuts at 20
CORRECTION = "algorithm.rollout_correction"
PLAIN = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))


def overrides(config: TrainConfig, folder: Path | str, chat: bool = True, resumed: int = 0) -> dict[str, Any]:
    """verl's settings by name; `engines.verl` overrides the translation. `resumed` is the step to go on from.

    `folder` is the run folder as verl's processes see it.
    """
    translate.refuse(config, "verl", "model.threads", "log.samples")
    own = flat(config.engines.verl)
    for key, value in own.items():  # validation may cut the distribution
        setting, _, name = key.lstrip("+~").rpartition(".")
        if setting.startswith(ROLLOUT) and not setting.endswith("val_kwargs"):
            translate.refuse_cut({name: value}, f"engines.verl.{setting}.")
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
    refuse_own_options(config.objective)
    correction, parameters = _objective(config)
    precision = "fp32" if config.model.dtype == "float32" else "bf16"
    translated: dict[str, Any] = {
        "data.train_files": f"{folder}/train.parquet", "data.val_files": f"{folder}/eval.parquet",
        "data.train_batch_size": rollout.prompts, "data.shuffle": False, "data.seed": config.seed,
        "data.max_prompt_length": PROMPT, "data.max_response_length": rollout.max_new_tokens,
        "data.filter_overlong_prompts": True,
        "algorithm.adv_estimator": f"fspo.{config.advantage}",
        f"{MODEL}.path": translate.start_path(config, Path(folder)), f"{MODEL}.lora_rank": lora.rank if lora else 0,
        **({f"{MODEL}.lora_alpha": int(lora.alpha)} if lora else {}),
        **({} if chat else {f"{MODEL}.custom_chat_template": PLAIN}),
        **correction,
        **({f"{ROLLOUT}.calculate_log_probs": True} if own.get(f"{CORRECTION}.bypass_mode") else {}),
        f"{ACTOR}.policy_loss._target_": "fspo.engines.verl.PolicyLoss", f"{ACTOR}.policy_loss.loss_mode": "fspo",
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
        "trainer.project_name": config.log.wandb or config.log.trackio or config.log.mlflow or "fspo",
        "trainer.experiment_name": Path(folder).name, "hydra.run.dir": f"{folder}/hydra",
        "trainer.logger": ["console", "file", *loggers(config)],
    }  # fmt: skip
    return translated | own


def mismatch(config: TrainConfig) -> dict[str, Any] | None:
    """The rule for vLLM's log-probs: the one given, else the default; None if `engines.verl` sets one."""
    own = [key for key in flat(config.engines.verl) if key.lstrip("+~").startswith(CORRECTION)]
    given: dict[str, Any] | None = config.objective.get("mismatch")
    if own and given is not None:
        raise ValueError(f"objective.mismatch and {own[0]} in engines.verl are the same rule: give one of them")
    return None if own else config.objective.get("mismatch", BAND)


def _objective(config: TrainConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """verl's settings for the sampler's rule, and the parameters of the objective.

    For a rule of the objective's own, verl has to compute weights without a threshold.
    """
    parameters = {key: value for key, value in config.objective.items() if key != "mismatch"}
    kind = objectives.get_class(parameters["name"])
    if not kind.__module__.startswith("fspo.objectives."):
        # A class of another package has no name that is known in every process of verl, but all can import it.
        parameters["name"] = f"{kind.__module__}:{kind.__qualname__}"
    settings: dict[str, Any] = {}
    if (rule := mismatch(config)) is not None:
        parameters["mismatch"] = dict(rule)
        settings |= {
            f"{CORRECTION}.rollout_is": "sequence" if objectives.Mismatch(**rule).level == "sequence" else "token",
            f"{CORRECTION}.rollout_is_threshold": OPEN, f"{ROLLOUT}.calculate_log_probs": True,
        }  # fmt: skip
    return settings, parameters


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


def dry_run(config: TrainConfig, folder: Path) -> str:
    """The command that would start verl. A tokenizer without a chat template adds one more setting when it starts."""
    words = command(overrides(config, folder.absolute(), config.model.chat is not False))
    return " \\\n  ".join([shlex.join(words[:3]), *map(shlex.quote, words[3:])])


# --- the run ----------------------------------------------------------------------------------------------------------


def train(config: TrainConfig, folder: Path, *, resume: bool = False, observer: Observer | None = None) -> None:
    """Run `config` on verl and merge verl's log into the run folder; with `resume`, go on from its last checkpoint."""
    folder, observer = folder.absolute(), observer or Observer()
    overrides(config, folder)  # refuses before anything is written
    require_installed(config)
    from transformers import AutoTokenizer

    with claimed(folder, resume=resume):
        resumed = last_step(folder / "checkpoints") if resume else 0
        if resume:
            _collect(folder)  # verl begins a new log
            RunWriter(folder).cut(resumed or -1)
        tokenizer = AutoTokenizer.from_pretrained(translate.start(config, folder, observer.warmup, fresh=not resume))
        write_prompts(config, folder)
        RunWriter(folder).describe(config.model_dump(mode="json"), engine="verl")
        if mismatch(config) == BAND:
            observer.note(RULE)
        words = command(overrides(config, folder, is_chat(config.model.chat, tokenizer.chat_template), resumed))
        observer.note(f"verl writes to {folder / 'verl.log'}; fspo watch {folder} shows the steps")
        with (folder / "verl.log").open("a") as log:
            # In the working directory of this process, so that relative paths and modules are found.
            process = subprocess.Popen(words, env=os.environ | verl_environment(folder), stdout=log, stderr=log)
            with interrupts(Observer()) as asked_to_stop:
                while process.poll() is None and not asked_to_stop():
                    time.sleep(1)
            if number := asked_to_stop():
                process.send_signal(signal.SIGINT)
                process.wait()
                _collect(folder)
                raise RunInterruptedError(last_step(folder / "checkpoints"), number)
        if process.returncode:
            raise ValueError(
                f"verl ended with exit code {process.returncode}: the reason is at the end of {folder / 'verl.log'}"
            )
        collect(folder / "verl.jsonl", folder)


def require_installed(config: TrainConfig) -> None:
    """Refuse a run for which a package is missing."""
    sampler = flat(config.engines.verl).get(f"{ROLLOUT}.name", "vllm")
    missing = [name for name in ("verl", "ray", sampler) if not _installed(name)]
    if missing:
        raise ValueError(
            f"--engine verl cannot start: {' and '.join(missing)} not installed (pip install 'fspo[verl]' {sampler})"
        )


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:  # an import hook refuses it
        return False


def verl_environment(folder: Path) -> dict[str, str]:
    """What verl reads from the environment: the plug-in to import in every process, and where its logs go."""
    modules = os.environ.get("VERL_USE_EXTERNAL_MODULES", "")
    return {
        "VERL_USE_EXTERNAL_MODULES": ",".join(filter(None, [modules, "fspo.engines.verl.plugin"])),
        "VERL_FILE_LOGGER_PATH": f"{folder}/verl.jsonl",
        "TENSORBOARD_DIR": f"{folder}/tensorboard",
    }


def _collect(folder: Path) -> None:
    """Merge verl's log into the run folder, if verl has written one."""
    if (folder / "verl.jsonl").is_file():
        collect(folder / "verl.jsonl", folder)


# --- verl's log and rewards ------------------------------------------------------------------------------------------

METRICS = {
    "reward": "critic/score/mean", "length": "response_length/mean", "truncated": "response_length/clip_ratio",
    "loss": "actor/pg_loss", "grad_norm": "actor/grad_norm", "lr": "actor/lr",
    "lag": "training/off_policy/trajectory_staleness/mean",
    "lag_max": "training/off_policy/trajectory_staleness_worst/max",
}  # fmt: skip
"""Our name -> verl's. Lag: weight versions since the one that sampled the answer."""
LAG_MIN = "training/off_policy/trajectory_staleness/min"
TIMES = {"rollout": "timing_s/gen", "update": "timing_s/update_actor", "total": "timing_s/step"}
VALIDATION = re.compile(r"val-(?:core|aux)/(.+)/(acc|reward)/mean@(\d+)")


def collect(log: str | Path, folder: str | Path) -> int:
    """Merge verl's JSON-lines log into the folder of a run that has ended, and return the last step. May be repeated.

    A policy loss sees no rewards; they are in the log of verl's `file` logger (`trainer.logger=[console,file]`, path in
    VERL_FILE_LOGGER_PATH). Validation has an accuracy where the reward function returned `acc` next to `score`.
    """
    log, folder = Path(log), Path(folder)
    if not log.is_file():
        raise ValueError(f"{log} does not exist: run verl with trainer.logger=[console,file] and VERL_FILE_LOGGER_PATH")
    logged = {row["step"]: row["data"] for row in json_lines(log) if not isinstance(row, BadLine)}
    trained = {step: data for step, data in logged.items() if METRICS["loss"] in data}
    known = {line.step: line for line in read_lines(folder, Metrics)}
    recorded, last = max(known, default=0), max(trained, default=0)
    if trained and recorded not in (last, last + 1):  # a run may stop between an update and the log's line about it
        raise ValueError(
            f"{folder} has records of {recorded} rollouts and {log.name} {last} steps of the actor: "
            "policy_loss.updates is not ppo_epochs * train_batch_size / ppo_mini_batch_size"
        )
    writer = RunWriter(folder)
    writer.merge(Metrics, [_metrics(known.get(step), step, data) for step, data in trained.items()])
    writer.merge(Timing, [Timing(step=step, **_renamed(TIMES, data)) for step, data in trained.items()])
    writer.merge(Evaluated, [line for step, data in logged.items() for line in _evaluations(step, data)])
    for step, data in trained.items():
        if data.get(METRICS["lag_max"]) and row_files.path_of(folder, step).is_file():
            writer.rows(step, _aged(row_files.path_of(folder, step), data))
    return last


def _aged(path: Path, data: dict[str, Any]) -> dict[str, list[Any]]:
    """Rows with `staleness` from verl's lag; empty where the smallest and largest lag differ."""
    rows = pl.read_parquet(path)
    lag, updates = data[METRICS["lag_max"]], max(rows["update"]) + 1
    age = pl.col("update") + int(lag) * updates if lag == data[LAG_MIN] else pl.lit(None)
    return rows.with_columns(staleness=age).to_dict(as_series=False)


def _metrics(known: Metrics | None, step: int, data: dict[str, Any]) -> Metrics:
    """A line of metrics, completed from verl's log."""
    recorded = {} if known is None else known.model_dump()
    line = Metrics(**recorded | {"step": step} | _renamed(METRICS, data))
    return line.model_copy(update={"warnings": warnings_of(line)})


def _renamed(names: dict[str, str], data: dict[str, Any]) -> dict[str, Any]:
    return {name: data[theirs] for name, theirs in names.items() if theirs in data}


def _evaluations(step: int, data: dict[str, Any]) -> list[Evaluated]:
    """One evaluation per data source."""
    sources: dict[str, dict[str, Any]] = {}
    for key, value in data.items():
        if match := VALIDATION.fullmatch(key):
            values = sources.setdefault(match[1], {"samples": int(match[3])})
            values["accuracy" if match[2] == "acc" else "reward"] = value
    return [Evaluated(step=step, split=split, **values) for split, values in sources.items()]


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, folder: str = "", **_: Any
) -> dict[str, float]:
    """The reward of an answer by the task of the run in `folder`. verl has no missing rewards: an answer that could not
    be scored gets 0, and is counted in `unscored`."""
    split, index = json.loads(ground_truth)
    task, scorer = _scorer(folder, split)
    value = scorer.score([task.example(split, index)], [solution_str])[0].value
    return {"score": value or 0.0, "acc": float(value is not None and value >= 1), "unscored": float(value is None)}


@functools.cache
def _scorer(folder: str, split: str) -> tuple[tasks.Task, Scorer]:
    """The task of a run, and a scorer that lives as long as this process."""
    config = read(Path(folder) / "config.yaml", [])
    task = tasks.get(config.task if split == "train" else config.eval_task)
    return task, Scorer(task, 1, config.scoring.timeout, config.scoring.memory_mb)


if __name__ == "__main__":
    collect(Path(sys.argv[1]) / "verl.jsonl", sys.argv[1])
