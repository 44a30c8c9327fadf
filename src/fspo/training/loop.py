"""The training loop, to be read from top to bottom: sample, score, learn, measure, record, evaluate, save.

    collect     prompts -> answers -> scores -> advantages       experience.py (rollout/, tasks/, advantages.py)
    learn       the optimiser steps on a rollout                 update.py (model/, objectives/)
    summarise   metrics, fairness of clipping, warnings          step_metrics.py (fairness/)
    record      the run folder                                   runs/
    evaluate    held-out accuracy                                evaluate.py
    save        checkpoints                                      checkpoint.py

With several processes (team.py, processes.py) each does its share of sampling, scoring and learning, and the first one
alone records and saves.

Everything random is drawn from (seed, step), so that a run resumed from a checkpoint goes on bit by bit as if it had
not stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from fspo import objectives, tasks
from fspo.config import TrainConfig
from fspo.model.loading import Lora, Policy, load, set_threads
from fspo.objectives import Objective
from fspo.rollout import samplers
from fspo.rollout.samplers import Sampler
from fspo.rollout.shadow import Shadow
from fspo.runs import (
    Metrics,
    NullObserver,
    Observer,
    RunWriter,
    Sample,
    Timing,
    claimed,
    unscored_warnings,
)
from fspo.runs.loggers import Logger, loggers
from fspo.tasks import Task
from fspo.tasks.scoring import Scorer
from fspo.training import checkpoint, processes
from fspo.training.evaluate import evaluate
from fspo.training.experience import Experience, check_prompts, collect
from fspo.training.old_logprobs import OldLogProbs, shared_logprobs
from fspo.training.step_metrics import rows_of, summarise
from fspo.training.stopping import RunInterruptedError, interrupts, writing
from fspo.training.team import Team
from fspo.training.update import Learner, Update
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
    config = config.model_copy(update={"processes": processes.chosen(config)})
    with writing(folder), ExitStack() as stack:
        if processes.leads():
            stack.enter_context(claimed(folder, resume=resume))
        team = stack.enter_context(processes.assembled(config, folder))
        return run(config, folder, team, observer or NullObserver(), handle_signals=handle_signals)


def run(config: TrainConfig, folder: Path, team: Team, observer: Observer, *, handle_signals: bool = False) -> Policy:
    """What every process of the team does."""
    observer = observer if team.leads else NullObserver()
    with ExitStack() as stack:
        training = _prepared(config, folder, team, observer, stack)
        if handle_signals:
            training.asked_to_stop = stack.enter_context(interrupts(observer))
        if training.state.step == 0:
            training.evaluate(0)
        for step in range(training.state.step + 1, config.steps + 1):
            if (number := training.step(step)) and step < config.steps:
                raise RunInterruptedError(step, number)
        return training.policy


def _prepared(config: TrainConfig, folder: Path, team: Team, observer: Observer, stack: ExitStack) -> _Training:
    """Everything that a run needs, loaded; nothing is written before all of it is there."""
    checkpoints = folder / "checkpoints"
    if team.leads:
        checkpoint.clean(checkpoints)
    task, held_out = tasks.get(config.task), tasks.get(config.eval_task)
    start = config.model.path if config.warmup is None else warm_start(config, task, observer.warmup, team)
    saved = team.told(checkpoint.latest(checkpoints, observer.warn) if team.leads else None)
    policy = _policy(config, start, saved, team)
    threads = set_threads(policy, config.model.threads, team.neighbours)
    check_prompts(config, policy, task, held_out)
    objective = objectives.get(**config.objective)
    device = team.device(config.model.device)
    reference = load(start, dtype=config.model.dtype, device=device) if objective.kl is not None else None
    learner = Learner(policy, objective, config, team)
    state = checkpoint.State()
    if saved is not None:
        state = checkpoint.read(saved, policy, learner.optimizer, learner.master)
        objective.load_state_dict(state.objective)
        learner.norm_limit.norms.extend(state.norms)
        if state.step > config.steps:
            raise ValueError(
                f"steps = {config.steps} is below the {state.step} steps that the run in {folder} has already: "
                f"raise it to {state.step} or more"
            )
        observer.note(f"resumed after step {state.step}")
    elif team.leads and (folder / "metrics.jsonl").is_file():
        observer.warn(f"{folder} has no checkpoint yet: the run starts again from its first step")
    scorer = stack.enter_context(Scorer(task, **config.scoring.model_dump()))
    examiner = scorer
    if config.eval.task is not None:
        examiner = stack.enter_context(Scorer(held_out, **config.scoring.model_dump()))
    wants_logprobs = objective.mismatch is not None
    sampler = stack.enter_context(samplers.start(config.rollout, policy, folder / "vllm.log", logprobs=wants_logprobs))
    writer, sinks = RunWriter(folder, keep_rows=config.log.records), []
    if team.leads:
        writer.cut(state.step if saved is not None else -1)
        writer.describe(config.model_dump(mode="json"), engine="local", threads=threads)
        sinks = [stack.enter_context(sink) for sink in loggers(config, folder)]
    return _Training(
        config, team, policy, reference, objective, learner, sampler, task, held_out, scorer, examiner, writer, sinks,
        observer, state, [Experience.from_json(values, policy.device) for values in state.waiting],
    )  # fmt: skip


@dataclass
class _Training:
    """A run in progress. Every process has one and does all of its work; only the leader writes and calls observers."""

    config: TrainConfig
    team: Team
    policy: Policy
    reference: Policy | None
    objective: Objective
    learner: Learner
    sampler: Sampler
    task: Task
    held_out: Task
    scorer: Scorer
    examiner: Scorer  # scores held-out answers
    writer: RunWriter
    sinks: list[Logger]
    observer: Observer
    state: checkpoint.State
    waiting: list[Experience]  # rollouts that are not trained on yet, with rollout.staleness
    shadow: Shadow = field(default_factory=Shadow)
    asked_to_stop: Callable[[], int] = lambda: 0  # the number of the signal that asked, or 0

    def step(self, step: int) -> int:
        """One rollout, and the updates on it or on an older one; returns the number of the signal that asks to stop."""
        config, state, clock = self.config, self.state, _Clock()
        sampled = self._sample(self.policy, step)
        clock.lap("rollout")
        self.waiting.append(sampled)
        trained = self.waiting.pop(0) if len(self.waiting) > config.rollout.staleness else None
        updates = self._learn(trained, step)
        clock.lap("update")
        state.step, state.skipped = step, state.skipped + sum(u.skipped for u in updates)
        if self.team.leads:
            metrics = summarise(
                sampled, trained, updates, config, step=step, lr=self.learner.learning_rate(step), skipped=state.skipped
            )
            self._record(metrics, sampled, trained, updates)
            self._announce(metrics, clock.timing(step, sum(sampled.lengths)))
        if state.skipped > config.update.max_skipped:
            raise FloatingPointError(
                f"{state.skipped} updates had no finite gradient, more than update.max_skipped = "
                f"{config.update.max_skipped}: lower update.lr, or look at the last samples in {self.writer.folder}"
            )
        last = step == config.steps
        if step % config.eval.every == 0 or last:
            self.evaluate(step)
        stop = self.team.told(self.asked_to_stop())
        if self.team.leads and (step % config.checkpoint.every == 0 or last or stop):
            self._save()
        return stop

    def evaluate(self, step: int) -> None:
        settings = self.config.eval
        found = evaluate(
            self.policy, self.held_out, self.examiner, split=settings.split, prompts=settings.prompts,
            samples=settings.samples, max_new_tokens=self.config.rollout.max_new_tokens,
            temperature=settings.temperature, seed=self.config.seed, chat=self.config.model.chat, team=self.team,
        )  # fmt: skip
        if not self.team.leads:
            return
        line = found.line(step)
        self.writer.append(line)
        self._warn({f"held-out {kind}": text for kind, text in unscored_warnings(line).items()})
        self.observer.evaluation(line)
        for sink in self.sinks:
            sink.log(step, {"eval/accuracy": found.accuracy, "eval/reward": found.reward})

    def _sample(self, policy: Policy, step: int) -> Experience:
        """A rollout, with the log-probs that must be taken now: pi_old, if the policy will have moved on, and the
        reference's."""
        sampled, self.state.next_index = collect(
            policy, self.sampler, self.task, self.scorer, self.config, step, self.state.next_index, self.team
        )
        temperature, budget = self.config.rollout.temperature, self.config.update.token_budget
        if self.config.rollout.staleness:
            sampled.old = OldLogProbs(shared_logprobs(self.team, policy, sampled.batch, temperature, budget))
        if self.reference is not None:
            sampled.reference = shared_logprobs(self.team, self.reference, sampled.batch, temperature, budget)
        return sampled

    def _learn(self, trained: Experience | None, step: int) -> list[Update]:
        return self.learner.learn(trained, step) if trained is not None else []

    def _record(self, metrics: Metrics, sampled: Experience, trained: Experience | None, updates: list[Update]) -> None:
        self.writer.append(metrics)
        self.writer.rows(metrics.step, rows_of(updates, trained, metrics.step))
        for u in updates:
            if u.direction is not None:
                self.writer.append(u.direction.line(metrics.step, u.update))
        for line in _samples(sampled, self.config.log.samples, metrics.step):
            self.writer.append(line)

    def _announce(self, metrics: Metrics, timing: Timing) -> None:
        self._warn(metrics.warnings)
        self.writer.append(timing)
        self.observer.step(metrics, timing)
        for sink in self.sinks:
            sink.log(metrics.step, metrics.model_dump() | timing.model_dump())

    def _warn(self, warnings: dict[str, str]) -> None:
        """Each kind of warning once per run."""
        for kind, text in warnings.items():
            if kind not in self.state.warned:
                self.state.warned = sorted([*self.state.warned, kind])
                self.observer.warn(text)

    def _save(self) -> None:
        self.state.objective = self.objective.state_dict()
        self.state.norms = list(self.learner.norm_limit.norms)
        self.state.waiting = [experience.to_json() for experience in self.waiting]
        folder, keep = self.writer.folder / "checkpoints", self.config.checkpoint.keep
        checkpoint.write(folder, self.state, self.policy, self.learner.optimizer, self.learner.master, keep)


def _policy(config: TrainConfig, start: str, saved: Path | None, team: Team) -> Policy:
    settings = config.model
    lora = None if settings.lora is None else Lora(settings.lora.rank, settings.lora.alpha)
    source = str(saved) if saved is not None and lora is None else start
    policy = load(source, dtype=settings.dtype, device=team.device(settings.device), lora=lora, seed=config.seed)
    policy.spec = start
    return policy


def _samples(experience: Experience, count: int, step: int) -> Iterator[Sample]:
    """Answers spread over the groups of a step."""
    n = len(experience.completions)
    for i in sorted({round(k * (n - 1) / max(1, count - 1)) for k in range(min(count, n))}):
        example = experience.examples[experience.group[i]]
        yield Sample(
            step=step,
            task=example["task"],
            prompt=example["prompt"],
            completion=experience.texts[i],
            reward=experience.rewards[i],
            length=experience.lengths[i],
            truncated=not experience.finished[i],
        )


class _Clock:
    """Seconds of each phase of a step."""

    def __init__(self) -> None:
        self.began = self.last = time.perf_counter()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name], self.last = now - self.last, now

    def timing(self, step: int, tokens: int) -> Timing:
        total = time.perf_counter() - self.began
        return Timing(step=step, **self.laps, total=total, tokens_per_second=tokens / total)
