"""The training loop, to be read from top to bottom: sample, score, learn, measure, record, evaluate, save.

    collect     prompts -> answers -> scores -> advantages       collect.py
    learn       the optimiser steps on a rollout                 update.py
    record      rows, metrics, fairness of clipping, warnings    runs/recorder.py
    evaluate    held-out accuracy                                evaluate.py
    save        checkpoints                                      checkpoint.py

Several processes share the work (processes.py); the first one records and saves. Everything random is drawn from
(seed, step), so that a resumed run goes on bit by bit as if it had not stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fspo import advantages, objectives, tasks
from fspo.config import TrainConfig
from fspo.model.answers import Answers
from fspo.model.loading import Policy, load, set_threads
from fspo.rollout.precision import rounded
from fspo.runs import Observer, RunWriter, Sample, Timing, claimed, unscored_warnings
from fspo.runs.observer import loggers
from fspo.runs.recorder import Recorder, Update
from fspo.tasks.scoring import Scorer
from fspo.training import checkpoint, processes
from fspo.training.collect import collect
from fspo.training.evaluate import SOLVED, evaluate
from fspo.training.processes import Team
from fspo.training.stopping import RunInterruptedError, interrupts, writing
from fspo.training.update import Learner
from fspo.training.warmup import warm_start


def train(
    config: TrainConfig,
    folder: Path,
    *,
    resume: bool = False,
    observer: Observer | None = None,
    handle_signals: bool = True,
) -> Policy:
    """Run `config` in `folder`; with `resume`, go on from its last checkpoint (or from the start if there is none).

    With `handle_signals`, SIGINT (Ctrl-C), SIGTERM and SIGHUP let the step finish and be saved before the run stops.
    """
    if objectives.get(**config.objective).mismatch is not None and config.rollout.precision is None:
        raise ValueError(
            "objective.mismatch corrects for a sampler whose log-probs differ from the trainer's, and the local engine "
            "samples with the trainer's own: leave it out, set rollout.precision, or train with --engine trl or verl"
        )
    if config.model.lora is not None or config.model.dtype != "float32":
        raise ValueError(
            "the local engine trains all weights in float32: leave model.lora and model.dtype out, or train with "
            "--engine trl or verl"
        )
    config = config.model_copy(update={"processes": processes.chosen(config)})
    with writing(folder), claimed(folder, resume=resume), processes.assembled(config, folder) as team:
        return run(config, folder, team, observer or Observer(), handle_signals=handle_signals)


def run(config: TrainConfig, folder: Path, team: Team, observer: Observer, *, handle_signals: bool = False) -> Policy:
    """What every process of the team does."""
    observer = observer if team.is_main else Observer()
    with ExitStack() as stack:
        training = _Training(config, folder, team, observer, stack)
        if handle_signals:
            training.asked_to_stop = stack.enter_context(interrupts(observer))
        if training.state.step == 0:
            training.evaluate(0)
        for step in range(training.state.step + 1, config.steps + 1):
            if (number := training.step(step)) and step < config.steps:
                raise RunInterruptedError(step, number)
        return training.policy


class _Training:
    """A run in progress. Every process has one and does all of its work; only the main process writes and calls
    observers."""

    def __init__(self, config: TrainConfig, folder: Path, team: Team, observer: Observer, stack: ExitStack) -> None:
        """Load everything that the run needs; nothing is written before all of it is there."""
        self.config, self.team = config, team
        checkpoints = folder / "checkpoints"
        if team.is_main:
            checkpoint.clean(checkpoints)
        self.task, self.held_out = tasks.get(config.task), tasks.get(config.eval_task)
        start = config.model.path if config.warmup is None else warm_start(config, self.task, observer.warmup, team)
        saved = team.broadcast(checkpoint.latest(checkpoints, observer.warn) if team.is_main else None)
        device = config.model.device
        self.policy = load(start if saved is None else str(saved), device=device, seed=config.seed)
        self.policy.spec = start
        threads = set_threads(self.policy, config.model.threads, team.size)
        self.objective = objectives.get(**config.objective)
        self.reference = load(start, device=device) if self.objective.kl is not None else None
        self.learner = Learner(self.policy, self.objective, config, team)
        self.state = checkpoint.State()
        if saved is not None:
            self._restore(saved, folder)
            observer.note(f"resumed after step {self.state.step}")
        elif team.is_main and (folder / "metrics.jsonl").is_file():
            observer.warn(f"{folder} has no checkpoint yet: the run starts again from its first step")
        # Rollouts that are not trained on yet, with rollout.staleness.
        self.waiting = [Answers.from_json(values, self.policy.device) for values in self.state.waiting]
        self.scorer = stack.enter_context(Scorer(self.task, **config.scoring.model_dump()))
        self.eval_scorer = self.scorer
        if config.eval.task is not None:
            self.eval_scorer = stack.enter_context(Scorer(self.held_out, **config.scoring.model_dump()))
        self.writer = RunWriter(folder, keep_rows=config.log.records)
        self.recorder = Recorder(self.writer, config.log.bins, optional=False)
        self.observers = [observer]
        self.asked_to_stop: Callable[[], int] = lambda: 0  # the number of the signal that asked, or 0
        if team.is_main:
            self.writer.cut(self.state.step if saved is not None else -1)
            self.writer.describe(config.model_dump(mode="json"), engine="local", threads=threads)
            self.observers += loggers(config, folder, stack)

    def _restore(self, saved: Path, folder: Path) -> None:
        self.state = checkpoint.read(saved, self.learner.optimizer)
        self.objective.load_state_dict(self.state.objective)
        self.learner.norm_limit.norms.extend(self.state.norms)
        if self.state.step > self.config.steps:
            raise ValueError(
                f"steps = {self.config.steps} is below the {self.state.step} steps that the run in {folder} has "
                f"already: raise it to {self.state.step} or more"
            )

    def step(self, step: int) -> int:
        """One rollout, and the updates on it or on an older one; returns the number of the signal that asks to stop."""
        config, state, times = self.config, self.state, [time.perf_counter()]
        sampled = self._sample(step)
        times.append(time.perf_counter())
        self.waiting.append(sampled)
        trained = self.waiting.pop(0) if len(self.waiting) > config.rollout.staleness else None
        updates = self.learner.learn(trained, step) if trained is not None else []
        times.append(time.perf_counter())
        state.step, state.skipped = step, state.skipped + sum(u.skipped for u in updates)
        if self.team.is_main:
            self._record(sampled, trained, updates, times)
        if all(math.isnan(reward) for reward in sampled.rewards):
            raise _nothing_scored(f"step {step}", sampled.failure_messages)
        if state.skipped > config.update.max_skipped:
            raise FloatingPointError(
                f"{state.skipped} updates had no finite gradient, more than update.max_skipped = "
                f"{config.update.max_skipped}: lower update.lr, or look at the last samples in {self.writer.folder}"
            )
        last = step == config.steps
        if step % config.eval.every == 0 or last:
            self.evaluate(step)
        stop = self.team.broadcast(self.asked_to_stop())
        if self.team.is_main and (step % config.checkpoint.every == 0 or last or stop):
            self._save()
        return stop

    def evaluate(self, step: int) -> None:
        evaluation = evaluate(self.policy, self.held_out, self.eval_scorer, team=self.team, **self.config.evaluation)
        line = evaluation.line(step)
        if self.team.is_main:
            self.writer.append(line)
            self._warn({f"held-out {kind}": text for kind, text in unscored_warnings(line).items()})
            for observer in self.observers:
                observer.evaluation(line)
        if line.unscored == len(evaluation.answers):
            raise _nothing_scored(f"the evaluation at step {step}", line.unscored_example)

    def _sample(self, step: int) -> Answers:
        """A rollout, with the log-probs that must be taken before the policy moves: pi_old under staleness, and the
        reference's."""
        precision = self.config.rollout.precision
        with rounded(self.policy, precision):
            sampled, self.state.next_index = collect(
                self.policy, self.task, self.scorer, self.config, step, self.state.next_index, self.team
            )
            if precision is not None:
                tokens = self.learner.logprobs(self.policy, sampled).tolist()
                sampled.sampler_logprobs = [row[:n] for row, n in zip(tokens, sampled.lengths, strict=True)]
        if self.config.rollout.staleness:
            self.learner.take_old(sampled, range(len(sampled)))
        if self.reference is not None:
            sampled.reference = self.learner.logprobs(self.reference, sampled)
        return sampled

    def _record(self, sampled: Answers, trained: Answers | None, updates: list[Update], times: list[float]) -> None:
        """Write the step and tell the observers; `times` are its start, the end of the rollout and of the updates."""
        step = self.state.step
        for update in updates:
            self.recorder.add(update)
        known = rollout_metrics(sampled) | {"lr": self.learner.learning_rate(step), "skipped": self.state.skipped}
        if trained is not None and trained.old is not None and not all(update.skipped for update in updates):
            known["entropy"] = self.learner.entropy(trained)
        metrics = self.recorder.close(step, **known)
        for line in _samples(sampled, self.config.log.samples, step):
            self.writer.append(line)
        self._warn(metrics.warnings)
        start, sampled_at, learned_at = times
        total = time.perf_counter() - start
        timing = Timing(
            step=step, rollout=sampled_at - start, update=learned_at - sampled_at, total=total,
            tokens_per_second=sampled.tokens / total,
        )  # fmt: skip
        self.writer.append(timing)
        for observer in self.observers:
            observer.step(metrics, timing)

    def _warn(self, warnings: dict[str, str]) -> None:
        """Each kind of warning once per run."""
        for kind, text in warnings.items():
            if kind not in self.state.warned:
                self.state.warned = sorted([*self.state.warned, kind])
                for observer in self.observers:
                    observer.warn(text)

    def _save(self) -> None:
        self.state.objective = self.objective.state_dict()
        self.state.norms = list(self.learner.norm_limit.norms)
        self.state.waiting = [answers.to_json() for answers in self.waiting]
        folder, keep = self.writer.folder / "checkpoints", self.config.checkpoint.keep
        checkpoint.write(folder, self.state, self.policy, self.learner.optimizer, keep)


def rollout_metrics(sampled: Answers) -> dict[str, Any]:
    """What the answers of a rollout were like."""
    rewards = np.array(sampled.rewards)
    scored = rewards[~np.isnan(rewards)]
    counts = advantages.count(torch.tensor(sampled.rewards, dtype=torch.float64), sampled.group)
    return {
        "reward": float(scored.mean()) if len(scored) else math.nan,
        "accuracy_train": float((scored >= SOLVED).mean()) if len(scored) else math.nan,
        "length": float(np.mean(sampled.lengths)),
        "truncated": float(1 - np.mean(sampled.finished)),
        "groups": counts.groups,
        "groups_without_variance": counts.without_variance,
        "groups_single": counts.single,
        "unscored": counts.unscored,
        "unscored_by_kind": sampled.failures,
        "unscored_example": sampled.failure_messages,
    }


def _nothing_scored(when: str, messages: dict[str, str]) -> ValueError:
    """The error where no answer of a rollout could be scored."""
    reason = next((f" ({kind}: {text})" if text else f" ({kind})" for kind, text in messages.items()), "")
    return ValueError(f"no answer of {when} could be scored{reason}: fix the reward, then go on with --resume")


def _samples(answers: Answers, count: int, step: int) -> Iterator[Sample]:
    """Answers spread over the groups of a step."""
    n = len(answers)
    for i in sorted({round(k * (n - 1) / max(1, count - 1)) for k in range(min(count, n))}):
        example = answers.examples[answers.group[i]]
        yield Sample(
            step=step,
            task=example["task"],
            prompt=example["prompt"],
            completion=answers.texts[i],
            reward=answers.rewards[i],
            length=len(answers.completions[i]),
            truncated=not answers.finished[i],
        )
