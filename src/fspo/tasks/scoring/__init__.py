"""Scores a batch of answers: in this process if that is safe, else in processes that can be killed."""

import math
import numbers
import re
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from decimal import Decimal
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fspo.tasks.task import Example, Task

__all__ = ["Score", "Scorer", "first_messages"]

if TYPE_CHECKING:
    from fspo.tasks.scoring.pool import Pool

LARGEST = 1e18  # differences and squares of rewards then fit a float32, in which gradients are computed


@dataclass(frozen=True)
class Score:
    """A reward, or why there is none: timeout, error, memory or crash."""

    value: float | None
    failure: str | None = None
    detail: str = ""  # the message of the error


def first_messages(scores: Iterable[Score]) -> dict[str, str]:
    """The first message of each kind of failure, without memory addresses, which differ between equal runs."""
    messages: dict[str, str] = {}
    for score in scores:
        if score.failure and score.failure not in messages:
            messages[score.failure] = re.sub(r"0x[0-9a-fA-F]{4,}", "0x...", score.detail)[:300]
    return messages


class ScoringBatch:
    """Scores of one completion per example; see `Scorer.batch`."""

    def __init__(self, scorer: "Scorer", examples: Sequence[Example], pool: "Pool | None") -> None:
        self._scorer, self._examples, self._pool = scorer, examples, pool
        self._sent: list[int] = []

    @property
    def overlaps(self) -> bool:
        """Whether scoring runs in other processes, so that `add` saves time."""
        return self._pool is not None

    def add(self, completions: Mapping[int, str]) -> None:
        """Begin to score these completions, by index; call it now and then, also with none, to keep workers busy."""
        if self._pool is not None:
            self._sent += completions
            self._pool.submit([(self._examples[i], text) for i, text in completions.items()])

    def finish(self, completions: Sequence[str]) -> list[Score]:
        """All scores in order; completions that were not added are scored now."""
        if len(self._examples) != len(completions):
            raise ValueError(f"{len(self._examples)} examples have {len(completions)} completions: give one each")
        if self._pool is None:
            task, pairs = self._scorer.task, zip(self._examples, completions, strict=True)
            return self._scorer.counted([Score(*checked(task, example, text)) for example, text in pairs])
        self.add({i: completions[i] for i in sorted(set(range(len(completions))) - set(self._sent))})
        results = dict(zip(self._sent, self._pool.finish(), strict=True))
        return self._scorer.counted([Score(*results[i]) for i in range(len(completions))])


class Scorer:
    """Scores batches in order. An answer that cannot be scored is counted in `failures` and does not stop the others;
    `first_messages` has the first message of each kind of failure.

    `timeout` is in wall-clock seconds per answer. `memory_mb` is what a scoring process may allocate in addition to the
    libraries it has loaded.
    """

    def __init__(self, task: Task, workers: int = 2, timeout: float = 10.0, memory_mb: int = 2048) -> None:
        if workers < 1:
            raise ValueError(f"workers is {workers}: it must be at least 1")
        if not 0 < timeout < float("inf"):
            raise ValueError(f"timeout is {timeout}: it must be a positive number of seconds per answer")
        if memory_mb < 64:
            raise ValueError(f"memory_mb is {memory_mb}: it must be at least 64 per scoring process")
        self.task = task
        self.workers = workers
        self.timeout = timeout
        self.memory_mb = memory_mb
        self.failures: Counter[str] = Counter()
        self.first_messages: dict[str, str] = {}
        self._pool: Pool | None = None

    def __enter__(self) -> "Scorer":
        self._processes()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def score(self, examples: Sequence[Example], completions: Sequence[str]) -> list[Score]:
        """One score per completion, in order."""
        with self.batch(examples) as batch:
            return batch.finish(completions)

    @contextmanager
    def batch(self, examples: Sequence[Example]) -> Iterator["ScoringBatch"]:
        """Score one completion per example, beginning with those that are known before the others."""
        pool = self._processes()
        with pool.batch() if pool else nullcontext():
            yield ScoringBatch(self, examples, pool)

    def counted(self, scores: list[Score]) -> list[Score]:
        """The scores, after adding their failures to the counts."""
        self.failures.update(score.failure for score in scores if score.failure)
        self.first_messages = first_messages(scores) | self.first_messages
        return scores

    def close(self) -> None:
        """End the scoring processes and all processes that they started."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _processes(self) -> "Pool | None":
        """The scoring processes; none where every part of the task is trusted."""
        if self._pool is None and not all(part.trusted for part in self.task.components()):
            from fspo.tasks.scoring.pool import Pool

            self._pool = Pool(self.task, self.workers, self.timeout, self.memory_mb)
        return self._pool


def checked(task: Task, example: Example, completion: str) -> tuple[float | None, str | None, str]:
    """A score, or the kind of failure and its message; an exception of the reward is not raised."""
    try:
        value: Any = task.score(example, completion)
        number = _number(value)
        if number is None:
            return None, "error", f"the reward returned {_shown(value)}, which is not a number"
        if not math.isfinite(number):
            return None, "error", f"the reward returned {_shown(value)}, which is not finite"
        if abs(number) > LARGEST:
            return None, "error", f"the reward returned {_shown(value)}, which is beyond {LARGEST:g}: scale it down"
        return number, None, ""
    except MemoryError:
        raise
    except Exception as error:
        return None, "error", message(error)


def message(error: BaseException) -> str:
    """The class and text of an exception."""
    return "".join(traceback.format_exception_only(error)).strip()[-500:]


def _number(value: Any) -> float | None:
    """A number of Python, numpy or torch as a float, also as an array without dimensions; None if it is none."""
    if getattr(value, "shape", None) == () and callable(getattr(value, "item", None)):
        value = value.item()
    return float(value) if isinstance(value, numbers.Real | Decimal) else None


def _shown(value: Any) -> str:
    return f"{type(value).__name__} {value!r:.100}"
