"""`fspo train --engine trl`: the same configuration on TRL's trainer.

    torchrun --nproc_per_node 8 -m fspo.cli train CONFIG --engine trl      # on several devices

Prompts, rewards and held-out evaluation are this package's; sampling and the update are TRL's.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from fspo import tasks
from fspo.engines.translate import chats, place, refuse, rows, start
from fspo.local import config as configuration
from fspo.local.config import TrainConfig
from fspo.local.evaluate import evaluate
from fspo.local.loop import Nobody, Observer, claim
from fspo.local.models import Lora, Policy, end_ids, lora_config, set_threads
from fspo.local.records import Records, read_lines
from fspo.tasks.scoring import Scorer

MISSING = {
    "rollout.staleness": "TRL trains on what it has just sampled",
    "rollout.dynamic": "TRL does not replace groups without variance",
    "rollout.cache_gib": "give vllm_gpu_memory_utilization in engines.trl",
    "update.max_skipped": "TRL does not count updates without a finite gradient",
    "log.bins": "its records have 6 bins of length",
    "log.cosine": "only the local engine takes the gradients of each bin of length",
    "log.records": "its records are always written",
}


def arguments(config: TrainConfig, folder: Path) -> dict[str, Any]:
    """The arguments of `FSPOConfig`. What `engines.trl` says goes over the translation."""
    refuse(config, "trl", MISSING)
    rollout, update, log = config.rollout, config.update, config.log
    objective = dict(config.objective)
    processes = int(os.environ.get("WORLD_SIZE", 1))
    a_step, left = divmod(rollout.prompts * rollout.group // update.minibatches, processes)
    if left:
        raise ValueError(f"{processes} processes cannot share the {a_step * processes + left} answers of a minibatch")
    # The token budget, were every answer as long as it may be; TRL's micro-batches are all of one size.
    room = max(1, update.token_budget // rollout.max_new_tokens)
    micro = max(size for size in range(1, min(room, a_step) + 1) if a_step % size == 0)
    updates = update.epochs * update.minibatches
    constant = "constant_with_warmup" if update.lr_warmup else "constant"
    trackers = {"tensorboard": log.tensorboard, "wandb": log.wandb, "trackio": log.trackio}
    found = {
        "output_dir": str(folder / "checkpoints"), "records": str(folder), "objective": objective.pop("name"),
        "objective_args": objective, "advantage": config.advantage, "seed": config.seed,
        "max_steps": config.steps * updates, "num_iterations": update.epochs,
        "per_device_train_batch_size": micro, "gradient_accumulation_steps": a_step // micro,
        "steps_per_generation": update.minibatches * (a_step // micro), "num_generations": rollout.group,
        "max_completion_length": rollout.max_new_tokens, "temperature": rollout.temperature,
        "shuffle_dataset": False, "learning_rate": update.lr, "warmup_steps": update.lr_warmup * updates,
        "lr_scheduler_type": constant if update.schedule == "constant" else update.schedule,
        "adam_beta1": update.betas[0], "adam_beta2": update.betas[1], "weight_decay": update.weight_decay,
        "max_grad_norm": update.clip_norm, "save_steps": config.checkpoint.every * updates,
        "save_total_limit": config.checkpoint.keep, "logging_steps": updates, "disable_tqdm": True,
        "use_cpu": config.model.device == "cpu", "bf16": False, "gradient_checkpointing": False,
        "model_init_kwargs": {"dtype": config.model.dtype},
        "report_to": [name for name, wanted in trackers.items() if wanted] or "none",
    }  # fmt: skip
    if rollout.engine == "vllm":
        found |= {"use_vllm": True, "vllm_mode": "colocate"}
    return found | config.engines.trl


def describe(config: TrainConfig, folder: Path) -> str:
    """What a dry run prints."""
    lines = [f"    {name}={value!r}," for name, value in arguments(config, folder).items()]
    return "\n".join(["FSPOTrainer(", f"    model={place(config, folder)!r},", "    args=FSPOConfig(",
                      *("    " + line for line in lines), "    ),", ")"])  # fmt: skip


def train(config: TrainConfig, folder: Path, *, resume: bool = False, observer: Observer | None = None) -> None:
    """Run `config` on TRL; with `resume`, from its last checkpoint."""
    try:
        from datasets import Dataset
        from transformers import AutoTokenizer, PrinterCallback
        from trl.trainer import grpo_trainer  # noqa: F401
    except ImportError as error:
        raise ValueError(f"--engine trl needs TRL ({error}): pip install fspo[trl]") from None
    from fspo.engines.trl import FSPOConfig, FSPOTrainer

    args = FSPOConfig(**arguments(config, folder))
    main = args.process_index == 0
    with args.main_process_first(desc="the start"):
        if main:
            claim(folder, resume)
            configuration.write(config, folder / "config.yaml")
        path = start(config, folder)
    for project, variable in ((config.log.wandb, "WANDB_PROJECT"), (config.log.trackio, "TRACKIO_PROJECT")):
        if project:
            os.environ[variable] = project
    tokenizer = AutoTokenizer.from_pretrained(path)
    chat = chats(config, tokenizer.chat_template)
    asked = rows(config.task, "train", config.steps * config.rollout.prompts)
    for row in asked:
        row["prompt"] = [{"role": "user", "content": row["prompt"]}] if chat else row["prompt"]
    lora = config.model.lora
    task, held_out = tasks.get(config.task), tasks.get(config.eval_task)
    with Scorer(task, **config.scoring.model_dump()) as scorer:
        samples = _Samples(config.log.samples)

        def reward(prompts: Any, completions: Any, index: list[int], **_: Any) -> list[float | None]:
            texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
            examples = [task.example("train", i) for i in index]
            scores = [score.value for score in scorer.score(examples, texts)]
            samples.keep(examples, texts, scores)
            return scores

        trainer = FSPOTrainer(
            model=path, args=args, reward_funcs=reward, train_dataset=Dataset.from_list(asked),
            processing_class=tokenizer, peft_config=lora_config(Lora(lora.rank, lora.alpha)) if lora else None,
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)  # what it would print goes to `observer`
        set_threads(Policy(trainer.model, tokenizer), config.model.threads)
        with Scorer(held_out, **config.scoring.model_dump()) as examiner:
            if main:
                trainer.add_callback(_callback(config, trainer, held_out, examiner, folder, samples, observer))
            saved = any((folder / "checkpoints").glob("checkpoint-*"))
            trainer.train(resume_from_checkpoint=resume and saved)
    trainer.save_model(str(folder / "model"))


class _Samples:
    """A few answers of each rollout, for the report; written when its updates are."""

    def __init__(self, count: int) -> None:
        self.count, self.waiting = count, list[dict[str, Any]]()

    def keep(self, examples: list[tasks.Example], texts: list[str], scores: list[float | None]) -> None:
        self.waiting = [
            {"task": examples[i].task, "prompt": examples[i].prompt, "completion": texts[i], "reward": scores[i]}
            for i in range(0, len(texts), -(-len(texts) // max(1, self.count)))
        ][: self.count]

    def write(self, records: Records, step: int) -> None:
        for row in self.waiting:
            records.append("samples", {"step": step, **row})


def _callback(
    config: TrainConfig,
    trainer: Any,
    task: tasks.Task,
    scorer: Scorer,
    folder: Path,
    samples: _Samples,
    observer: Observer | None,
) -> Any:
    """Held-out evaluation by this package between two of TRL's steps, and news for whoever watches."""
    from transformers import TrainerCallback

    records, watcher = Records(folder, keep_rows=False), observer or Nobody()
    updates = config.update.epochs * config.update.minibatches

    def look(step: int) -> None:
        if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
            warnings.warn("held-out evaluation needs the whole model on one device, and it is sharded", stacklevel=2)
            return
        model = trainer.accelerator.unwrap_model(trainer.model)
        was_training = model.training
        model.eval()
        policy = Policy(model, trainer.processing_class, eos_ids=end_ids(model, trainer.processing_class))
        found = evaluate(
            policy, task, scorer, split=config.eval.split, prompts=config.eval.prompts, samples=config.eval.samples,
            seed=config.seed,
            max_new_tokens=config.rollout.max_new_tokens, temperature=config.eval.temperature, chat=config.model.chat,
        )  # fmt: skip
        model.train(was_training)
        row = {"step": step, **found.row()}
        records.append("evaluations", row)
        watcher.evaluation(row)

    class Watch(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 0:
                look(0)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            step, inside = divmod(state.global_step, updates)
            if inside:
                return
            samples.write(records, step)
            for row in read_lines(folder / "metrics.jsonl")[-1:]:
                watcher.step(row, {})
            if step % config.eval.every == 0 or step == config.steps:
                look(step)

    return Watch()
