"""The training loop: sample, score, learn, measure, write, evaluate, save; to be read from top to bottom.

Everything random is drawn from (seed, step), so that a run resumed from a checkpoint goes on to the bit.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from fspo import objectives, tasks
from fspo.local import checkpoint, samplers
from fspo.local import config as configuration
from fspo.local.config import TrainConfig
from fspo.local.direction import direction_row
from fspo.local.evaluate import evaluate
from fspo.local.experience import Experience, collect, policy_logprobs
from fspo.local.loggers import Logger, loggers
from fspo.local.measure import summarise
from fspo.local.models import Lora, Policy, load, set_threads
from fspo.local.records import Records
from fspo.local.update import Learner
from fspo.local.warmup import warm_start
from fspo.tasks.scoring import Scorer


class Observer(Protocol):
    """Whoever watches a run: the live display, or nobody."""

    def warmup(self, done: int, total: int, solved: float) -> None: ...
    def step(self, metrics: dict[str, Any], timing: dict[str, Any]) -> None: ...
    def evaluation(self, row: dict[str, Any]) -> None: ...
    def warn(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...


class Nobody:
    """An observer that does not look."""

    def warmup(self, done: int, total: int, solved: float) -> None: ...
    def step(self, metrics: dict[str, Any], timing: dict[str, Any]) -> None: ...
    def evaluation(self, row: dict[str, Any]) -> None: ...
    def warn(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...


class RunInterruptedError(Exception):
    """Ctrl-C was pressed; the run is saved up to `step`."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped after step {step}")
        self.step = step


def train(config: TrainConfig, folder: Path, *, resume: bool = False, observer: Observer | None = None) -> Policy:
    """Run `config` in `folder`; with `resume`, go on from its last checkpoint (or from the start if there is none)."""
    observer = observer or Nobody()
    samplers.require(config.rollout)
    claim(folder, resume)
    configuration.write(config, folder / "config.yaml")
    task, held_out = tasks.get(config.task), tasks.get(config.eval_task)
    start = config.model.path if config.warmup is None else warm_start(config, task, observer.warmup)
    saved = checkpoint.steps(folder / "checkpoints")
    policy = _policy(config, start, checkpoint.path_of(folder / "checkpoints", saved[-1]) if saved else None)
    threads = set_threads(policy, config.model.threads)
    objective = objectives.get(**config.objective)
    reference = load(start, dtype=config.model.dtype, device=config.model.device) if objective.kl is not None else None
    learner = Learner(policy, objective, config)
    state = checkpoint.State(0, 0, 0, {}, [], {})
    if saved:
        state = checkpoint.read(checkpoint.path_of(folder / "checkpoints", saved[-1]), policy, learner.optimizer)
        objective.load_state_dict(state.objective)
        observer.note(f"resumed after step {state.step}")
    records = Records(folder, config.log.records)
    records.cut(state.step if saved else -1)
    _describe(folder, threads)
    waiting = [Experience.from_json(values, policy.device) for values in state.waiting]
    next_index, skipped, warned = state.next_index, state.skipped, set(state.extra.get("warned", []))

    with ExitStack() as stack:
        scorer = stack.enter_context(Scorer(task, **config.scoring.model_dump()))
        examiner = scorer
        if config.eval.task is not None:
            examiner = stack.enter_context(Scorer(held_out, **config.scoring.model_dump()))
        sinks = [stack.enter_context(sink) for sink in loggers(config, folder)]
        sampler = stack.enter_context(samplers.start(config.rollout, policy, folder / "vllm.log"))
        asked_to_stop = stack.enter_context(_interrupt(observer))
        if not saved:
            _evaluate(policy, held_out, examiner, config, 0, records, sinks, observer)
        for step in range(state.step + 1, config.steps + 1):
            clock = _Clock()
            experience, next_index = collect(policy, sampler, task, scorer, config, step, next_index)
            clock.lap("rollout")
            if config.rollout.staleness or reference is not None:
                _take_logprobs(experience, policy, reference, config)
            waiting.append(experience)
            trained = waiting.pop(0) if len(waiting) > config.rollout.staleness else None
            updates = learner.learn(trained, step) if trained is not None else []
            clock.lap("update")
            skipped += sum(u.skipped for u in updates)
            metrics, columns, warnings = summarise(experience, trained, updates, config, step)
            metrics |= {"lr": learner.learning_rate(step), "skipped": skipped}
            records.append("metrics", metrics | {"warnings": warnings})
            records.rows(step, columns)
            for u in updates:
                if u.direction is not None:
                    records.append("cosine", {"step": step, "update": u.update, **direction_row(u.direction)})
            for sample in _samples(experience, config.log.samples, step):
                records.append("samples", sample)
            for key, text in warnings.items():
                if key not in warned:
                    warned.add(key)
                    observer.warn(text)
            timing = clock.timing(step, sum(experience.lengths))
            records.append("timings", timing)
            observer.step(metrics, timing)
            for sink in sinks:
                sink.log(step, metrics | timing)
            if skipped > config.update.max_skipped:
                raise FloatingPointError(
                    f"{skipped} updates had no finite gradient, more than update.max_skipped = "
                    f"{config.update.max_skipped}: lower update.lr, or look at the last samples in {folder}"
                )
            last = step == config.steps
            if step % config.eval.every == 0 or last:
                _evaluate(policy, held_out, examiner, config, step, records, sinks, observer)
            if step % config.checkpoint.every == 0 or last or asked_to_stop():
                rest = [e.to_json() for e in waiting]
                state = checkpoint.State(
                    step, next_index, skipped, objective.state_dict(), rest, {"warned": sorted(warned)}
                )
                checkpoint.write(folder / "checkpoints", state, policy, learner.optimizer, config.checkpoint.keep)
            if asked_to_stop() and not last:
                raise RunInterruptedError(step)
    return policy


def claim(folder: Path, resume: bool) -> None:
    """A folder holds one run: it is not overwritten, and only a run can be resumed."""
    used = (folder / "config.yaml").exists()
    if used and not resume:
        raise ValueError(f"{folder} already holds a run: add --resume to go on with it, or choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint.clean(folder / "checkpoints")


def _policy(config: TrainConfig, start: str, saved: Path | None) -> Policy:
    settings = config.model
    lora = None if settings.lora is None else Lora(settings.lora.rank, settings.lora.alpha)
    source = str(saved) if saved is not None and lora is None else start
    policy = load(source, dtype=settings.dtype, device=settings.device, lora=lora, seed=config.seed)
    policy.spec = start
    return policy


def _take_logprobs(experience: Experience, policy: Policy, reference: Policy | None, config: TrainConfig) -> None:
    """Log-probs that must be taken now: of the policy that sampled, if it will have moved on, and of the reference."""
    temperature, budget = config.rollout.temperature, config.update.token_budget
    if config.rollout.staleness:
        experience.old = policy_logprobs(policy, experience.batch, temperature, budget)
    if reference is not None:
        experience.reference = policy_logprobs(reference, experience.batch, temperature, budget)


def _evaluate(
    policy: Policy,
    task: tasks.Task,
    scorer: Scorer,
    config: TrainConfig,
    step: int,
    records: Records,
    sinks: list[Logger],
    observer: Observer,
) -> None:
    found = evaluate(
        policy, task, scorer, split=config.eval.split, prompts=config.eval.prompts, samples=config.eval.samples,
        max_new_tokens=config.rollout.max_new_tokens, temperature=config.eval.temperature, seed=config.seed,
        chat=config.model.chat,
    )  # fmt: skip
    row = {"step": step, **found.row()}
    records.append("evaluations", row)
    observer.evaluation(row)
    for sink in sinks:
        sink.log(step, {"eval/accuracy": found.accuracy, "eval/reward": found.reward})


def _samples(experience: Experience, count: int, step: int) -> Iterator[dict[str, Any]]:
    """Answers spread over the groups of a step."""
    n = len(experience.completions)
    for i in sorted({round(k * (n - 1) / max(1, count - 1)) for k in range(min(count, n))}):
        example = experience.examples[experience.group[i]]
        yield {
            "step": step, "task": example["task"], "prompt": example["prompt"], "completion": experience.texts[i],
            "reward": experience.rewards[i], "length": experience.lengths[i],
            "truncated": not experience.finished[i],
        }  # fmt: skip


class _Clock:
    """Seconds of each phase of a step."""

    def __init__(self) -> None:
        self.began = self.last = time.perf_counter()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name], self.last = now - self.last, now

    def timing(self, step: int, tokens: int) -> dict[str, Any]:
        total = time.perf_counter() - self.began
        return {"step": step, **self.laps, "total": total, "tokens_per_second": tokens / total}


@contextmanager
def _interrupt(observer: Observer) -> Iterator[Any]:
    """The first Ctrl-C lets the step finish and be saved; the second stops at once."""
    asked: list[int] = []

    def handle(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        observer.note("finishing this step, then saving; press Ctrl-C again to stop at once")

    try:
        before = signal.signal(signal.SIGINT, handle)
    except ValueError:  # not the main thread: nobody can press Ctrl-C here
        yield lambda: False
        return
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)


def _describe(folder: Path, threads: int) -> None:
    versions = {name: importlib.metadata.version(name) for name in ("fspo", "torch", "transformers")}
    facts = {"versions": versions, "python": platform.python_version(), "threads": threads}
    (folder / "run.json").write_text(json.dumps(facts, indent=1))
