"""`fspo train --engine trl`: the same configuration on TRL's trainer.

    torchrun --nproc_per_node 8 -m fspo train CONFIG --engine trl      # on several devices

Prompts, rewards and held-out evaluation are this package's; sampling and the update are TRL's. Importing this module
does not import TRL, so that a dry run works without it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fspo import tasks
from fspo.config import TrainConfig, is_chat
from fspo.engines.translate import CLIP_NORM, PROMPT, loggers, refuse, rows, start, start_path
from fspo.model.loading import Policy, end_ids, set_threads
from fspo.runs import Observer, RunWriter, Sample, Timing, claimed, unscored_warnings
from fspo.tasks.scoring import Scorer, failures, first_messages
from fspo.training.evaluate import evaluate
from fspo.training.stopping import RunInterruptedError, interrupts


def arguments(config: TrainConfig, folder: Path) -> dict[str, Any]:
    """The arguments of `FSPOConfig`; `engines.trl` overrides the translation."""
    refuse(config, "trl")
    rollout, update = config.rollout, config.update
    objective = dict(config.objective)
    processes = int(os.environ.get("WORLD_SIZE", 1))
    answers, left = divmod(rollout.prompts * rollout.group // update.minibatches, processes)  # per optimiser step
    if left:
        raise ValueError(f"{processes} processes cannot share the {answers * processes + left} answers of a minibatch")
    # TRL's micro-batches all have the same number of answers: as many as fit the token budget at full length.
    most = max(1, update.token_budget // rollout.max_new_tokens)
    micro = max(size for size in range(1, min(most, answers) + 1) if answers % size == 0)
    updates = update.epochs * update.minibatches
    constant = "constant_with_warmup" if update.lr_warmup else "constant"
    translated = {
        "output_dir": str(folder / "checkpoints"), "records": str(folder), "objective": objective.pop("name"),
        "objective_args": objective, "advantage": config.advantage, "seed": config.seed,
        "max_steps": config.steps * updates, "num_iterations": update.epochs,
        "per_device_train_batch_size": micro, "gradient_accumulation_steps": answers // micro,
        "steps_per_generation": update.minibatches * (answers // micro), "num_generations": rollout.group,
        "max_completion_length": rollout.max_new_tokens, "temperature": rollout.temperature,
        "shuffle_dataset": False, "learning_rate": update.lr, "warmup_steps": update.lr_warmup * updates,
        "lr_scheduler_type": constant if update.schedule == "constant" else update.schedule,
        "adam_beta1": update.betas[0], "adam_beta2": update.betas[1], "weight_decay": update.weight_decay,
        "max_grad_norm": update.clip_norm or CLIP_NORM, "save_steps": config.checkpoint.every * updates,
        "save_total_limit": config.checkpoint.keep, "logging_steps": updates, "disable_tqdm": True,
        "use_cpu": config.model.device == "cpu", "gradient_checkpointing": False,
        # Float32 weights and bfloat16 products: bfloat16 weights would round most updates away.
        "bf16": config.model.dtype == "bfloat16", "model_init_kwargs": {"dtype": "float32"},
        "report_to": loggers(config) or "none",
    }  # fmt: skip
    return translated | config.engines.trl


def dry_run(config: TrainConfig, folder: Path) -> str:
    """What TRL's trainer would be given."""
    lines = [f"        {name}={value!r}," for name, value in arguments(config, folder).items()]
    model = f"    model={start_path(config, folder)!r},"
    return "\n".join(["FSPOTrainer(", model, "    args=FSPOConfig(", *lines, "    ),", ")"])


def train(config: TrainConfig, folder: Path, *, resume: bool = False, observer: Observer | None = None) -> None:
    """Run `config` on TRL; with `resume`, go on from its last checkpoint."""
    try:
        from accelerate.utils import gather_object
        from datasets import Dataset
        from transformers import AutoTokenizer, PrinterCallback
        from trl.trainer import grpo_trainer  # noqa: F401
    except ImportError as error:
        raise ValueError(f"--engine trl needs TRL ({error}): pip install 'fspo[trl]'") from None
    from fspo.engines.trl import FSPOConfig, FSPOTrainer

    observer = observer or Observer()
    args = FSPOConfig(**arguments(config, folder))
    main = args.process_index == 0
    with ExitStack() as stack:
        with args.main_process_first(desc="the start"):
            if main:
                stack.enter_context(claimed(folder, resume=resume))
            path = start(config, folder, observer.warmup, fresh=main and not resume)
        variables = {"wandb": "WANDB_PROJECT", "trackio": "TRACKIO_PROJECT", "mlflow": "MLFLOW_EXPERIMENT_NAME"}
        for tracker, variable in variables.items():
            if project := getattr(config.log, tracker):
                os.environ[variable] = project
        tokenizer = AutoTokenizer.from_pretrained(path)
        asked = rows(config.task, "train", config.steps * config.rollout.prompts)
        kept = [row for row in asked if len(tokenizer(row["prompt"])["input_ids"]) <= PROMPT]
        if not kept:
            raise ValueError(f"every prompt of the task has more than {PROMPT} tokens: use shorter prompts")
        if len(kept) < len(asked):
            observer.note(f"{len(asked) - len(kept)} prompts of more than {PROMPT} tokens are left out")
        if is_chat(config.model.chat, tokenizer.chat_template):
            for row in kept:
                row["prompt"] = [{"role": "user", "content": row["prompt"]}]
        adapters = None
        if (lora := config.model.lora) is not None:
            from peft import LoraConfig

            adapters = LoraConfig(
                r=lora.rank,
                lora_alpha=lora.alpha,  # type: ignore[arg-type]  # peft multiplies by it: any number will do
                target_modules="all-linear",
                task_type="CAUSAL_LM",
            )
        task, held_out = tasks.get(config.task), tasks.get(config.eval_task)
        scorer = stack.enter_context(Scorer(task, **config.scoring.model_dump()))
        samples: list[dict[str, Any]] = []  # some answers of the last rollout, written when its updates are done

        def reward(prompts: Any, completions: Any, index: list[int], **_: Any) -> list[float | None]:
            texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
            examples = [task.example("train", i) for i in index]
            given = scorer.score(examples, texts)
            failed = gather_object([score for score in given if score.failure])
            trainer.scoring = {"unscored_by_kind": failures(failed), "unscored_example": first_messages(failed)}
            scores = [score.value for score in given]
            spread = range(0, len(texts), -(-len(texts) // max(1, config.log.samples)))
            samples[:] = [
                {"task": examples[i].task, "prompt": examples[i].prompt, "completion": texts[i], "reward": scores[i]}
                for i in spread[: config.log.samples]
            ]
            return scores

        trainer = FSPOTrainer(
            model=path, args=args, reward_funcs=reward, train_dataset=Dataset.from_list(kept),
            processing_class=tokenizer, peft_config=adapters,
        )  # fmt: skip
        trainer.describe_run = False  # the folder has this run's configuration
        trainer.remove_callback(PrinterCallback)  # `observer` shows what it would print
        if main and args.sampler_rule:
            observer.note(args.sampler_rule)
        set_threads(Policy(trainer.model, tokenizer), config.model.threads)
        if main:
            eval_scorer = stack.enter_context(Scorer(held_out, **config.scoring.model_dump()))
            # Several processes would have to agree on the step: there a signal ends the run at its last checkpoint.
            asked_to_stop = stack.enter_context(interrupts(observer)) if args.world_size == 1 else lambda: 0
            follow = _callback(config, trainer, held_out, eval_scorer, folder, samples, observer, asked_to_stop)
            trainer.add_callback(follow)
            RunWriter(folder).describe(config.model_dump(mode="json"), engine="trl")
        saved = any((folder / "checkpoints").glob("checkpoint-*"))
        trainer.train(resume_from_checkpoint=resume and saved)
        if main and (number := asked_to_stop()) and trainer.state.global_step < args.max_steps:
            raise RunInterruptedError(trainer.tracker.step - 1, number)
        trainer.save_model(str(folder / "model"))


def _callback(
    config: TrainConfig,
    trainer: Any,
    task: tasks.Task,
    scorer: Scorer,
    folder: Path,
    samples: list[dict[str, Any]],
    observer: Observer,
    asked_to_stop: Callable[[], int],
) -> Any:
    """A TRL callback: held-out evaluation by this package, and the events of the observer."""
    from transformers import TrainerCallback

    writer = RunWriter(folder)
    updates = config.update.epochs * config.update.minibatches
    warned: set[str] = set()  # kinds of warnings

    def warn(kinds: Mapping[str, str]) -> None:
        for kind in kinds.keys() - warned:
            warned.add(kind)
            observer.warn(kinds[kind])

    def evaluate_at(step: int) -> None:
        if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
            warnings.warn("no held-out evaluation: it needs the whole model on one device", stacklevel=2)
            return
        model = trainer.accelerator.unwrap_model(trainer.model)
        was_training = model.training
        model.eval()
        policy = Policy(model, trainer.processing_class, eos_ids=end_ids(model, trainer.processing_class))
        evaluation = evaluate(policy, task, scorer, **config.evaluation)
        model.train(was_training)
        line = evaluation.line(step)
        writer.append(line)
        warn({f"held-out {kind}": text for kind, text in unscored_warnings(line).items()})
        observer.evaluation(line)

    class Follow(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 0:
                evaluate_at(0)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            step, inside = divmod(state.global_step, updates)
            if inside:
                return
            for values in samples:
                writer.append(Sample(step=step, **values))
            metrics = trainer.tracker.written
            if metrics is not None and metrics.step == step:
                warn(metrics.warnings)
                observer.step(metrics, Timing(step=step))
            if step % config.eval.every == 0 or step == config.steps:
                evaluate_at(step)
            if asked_to_stop():
                control.should_save = control.should_training_stop = True

    return Follow()
