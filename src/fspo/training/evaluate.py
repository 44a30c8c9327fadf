"""Held-out evaluation: accuracy, avg@k and pass@k with intervals, by length and by difficulty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from pydantic import Field

from fspo.fairness.bins import cut, quantile_edges
from fspo.fairness.measure import wilson
from fspo.model.loading import Policy
from fspo.ratios import Floats
from fspo.rollout.generate import decode, encode, generate
from fspo.runs import Evaluated, Rate, RateBin
from fspo.tasks import Task
from fspo.tasks.scoring import Score, Scorer, failures, first_messages
from fspo.training.processes import Team

SOLVED = 1.0 - 1e-9  # a graded reward counts as solved when it is whole
PROMPTS_AT_ONCE = 256


@dataclass(frozen=True)
class Answer:
    """One answer of an evaluation."""

    prompt: str
    completion: str
    reward: float | None
    length: int
    truncated: bool
    difficulty: float
    task: str
    failure: str | None = None  # why there is no reward
    message: str = ""
    features: dict[str, float] = field(default_factory=dict)  # see Task.features


class Evaluation(Evaluated):
    """What a policy does on held-out prompts, over the answers that could be scored. `accuracy` is avg@k, their mean;
    pass@k is the mean over the prompts with at least k scored answers. Without any scored answer they are None or
    empty. A run folder keeps everything but the answers.
    """

    prompts: int
    samples: int
    interval: tuple[float, float]
    truncated: float
    unscored: int
    answers: list[Answer] = Field(exclude=True, repr=False)

    def line(self, step: int) -> Evaluated:
        """The evaluation of this step of a run."""
        return self.model_copy(update={"step": step})


def evaluate(
    policy: Policy,
    task: Task,
    scorer: Scorer,
    *,
    split: str,
    prompts: int,
    max_new_tokens: int,
    temperature: float,
    seed: int,
    samples: int = 1,
    chat: bool | None = None,
    team: Team | None = None,
) -> Evaluation:
    """Ask the first `prompts` prompts of the split, `samples` times each. Answers without a score are counted apart.

    Each process of a team asks its share of the prompts, and all of them return the same.
    """
    team = team or Team()
    for name, value in (("prompts", prompts), ("samples", samples)):
        if value < 1:
            raise ValueError(f"{name} = {value} leaves nothing to evaluate: give at least 1")
    size = task.size(split)
    prompts = prompts if size is None else min(prompts, size)
    examples = [task.example(split, i) for i in range(prompts)]
    answers: list[Answer] = []
    for start in range(0, prompts, PROMPTS_AT_ONCE):
        part = examples[start : start + PROMPTS_AT_ONCE]
        indices = team.scatter(range(len(part)))
        own: list[Answer] = []
        if indices:
            sampled = generate(
                policy, encode(policy, [part[i] for i in indices], chat), samples, max_new_tokens=max_new_tokens,
                temperature=temperature, seed=seed + start, indices=indices,
            )  # fmt: skip
            texts = decode(policy, sampled.completions)
            asked = [part[indices[g]] for g in sampled.group]
            scores = scorer.score(asked, texts)
            own = [
                Answer(
                    e.prompt, text, s.value, len(c), not done, e.difficulty, e.task, s.failure, s.detail,
                    task.features(e, text),
                )
                for e, text, s, c, done in zip(asked, texts, scores, sampled.completions, sampled.finished, strict=True)
            ]  # fmt: skip
        by_prompt = [own[i : i + samples] for i in range(0, len(own), samples)]
        answers += [answer for asked_once in team.unscatter(by_prompt) for answer in asked_once]
    return summarise(answers, split, prompts, samples)


def summarise(answers: Sequence[Answer], split: str, prompts: int, samples: int) -> Evaluation:
    """Rates and intervals; answers to the same prompt are neighbours."""
    scored = np.array([a.reward is not None for a in answers])
    solved = np.array([a.reward is not None and a.reward >= SOLVED for a in answers], dtype=float)
    n, right = scored.reshape(prompts, samples).sum(1), solved.reshape(prompts, samples).sum(1)
    estimates = {}
    for k in (k for k in (1, 2, 4, 8, 16, 32, 64, 128, 256) if k <= n.max()):
        enough = n >= k
        estimates[k] = np.array([pass_at_k(int(m), int(c), k) for m, c in zip(n[enough], right[enough], strict=True)])
    known = [a for a in answers if a.reward is not None]
    failed = [Score(None, a.failure or "error", a.message) for a in answers if a.reward is None]
    solved = solved[scored]
    return Evaluation(
        step=0,
        split=split,
        prompts=prompts,
        samples=samples,
        accuracy=float(solved.mean()) if known else math.nan,
        interval=_accuracy_interval(n, right),
        reward=float(np.mean([a.reward for a in known])) if known else math.nan,
        truncated=float(np.mean([a.truncated for a in answers])),
        unscored=len(failed),
        unscored_by_kind=failures(failed),
        unscored_example=first_messages(failed),
        pass_at={k: float(values.mean()) for k, values in estimates.items()},
        pass_at_interval={k: _interval(values) for k, values in estimates.items()},
        by_length=_by([a.length for a in known], solved),
        by_difficulty=_by([a.difficulty for a in known], solved),
        by_task={name: _rate(solved[[a.task == name for a in known]]) for name in sorted({a.task for a in known})},
        features=_means([a.features for a in answers]),
        answers=list(answers),
    )


def pass_at_k(n: int, correct: int, k: int) -> float:
    """The chance that k of n answers, drawn without replacement, hold a correct one (arXiv 2107.03374)."""
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def _accuracy_interval(n: Floats, right: Floats) -> tuple[float, float]:
    """95 % interval of sum(right) / sum(n). Answers to the same prompt are not independent: it is over prompts."""
    asked = n > 0
    n, right = n[asked], right[asked]
    if not len(n):
        return 0.0, 1.0
    if n.max() == 1:
        return wilson(float(right.sum()), len(n))
    if n.min() == n.max() or np.ptp(right / n) == 0:
        return _interval(right / n)
    return _bootstrap(right, n)


def _interval(values: Floats) -> tuple[float, float]:
    """95 % bootstrap interval of a mean over prompts; Wilson's where all agree, since a bootstrap would be a point."""
    if values.min() == values.max():
        return wilson(float(values.sum()), len(values))
    return _bootstrap(values, np.ones_like(values))


def _bootstrap(right: Floats, n: Floats) -> tuple[float, float]:
    draws = np.random.default_rng(0).integers(0, len(n), (2000, len(n)))
    low, high = np.quantile(right[draws].sum(1) / n[draws].sum(1), [0.025, 0.975])
    return float(low), float(high)


def _by(attribute: Sequence[float], solved: Floats) -> list[RateBin]:
    if not len(solved):
        return []
    values = np.asarray(attribute, dtype=float)
    cells = cut(values, quantile_edges(values, 4, least=0.0))
    rates = [_rate(solved[cells.index == k]) for k in range(len(cells))]
    return [RateBin(**dict(rate), low=low, high=high) for rate, (low, high) in zip(rates, cells.ranges, strict=True)]


def _means(features: Sequence[dict[str, float]]) -> dict[str, float]:
    names = sorted({name for each in features for name in each})
    return {name: float(np.mean([each[name] for each in features if name in each])) for name in names}


def _rate(solved: Floats) -> Rate:
    interval = wilson(float(solved.sum()), len(solved))
    return Rate(count=len(solved), accuracy=float(solved.mean()), interval=interval)
