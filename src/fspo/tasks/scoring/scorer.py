"""Scores a batch of answers: in this process if that is safe, else in processes that can be killed."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from fspo.tasks.task import Example, Task

if TYPE_CHECKING:
    from fspo.tasks.scoring.pool import Pool


@dataclass(frozen=True)
class Score:
    """A reward, or why there is none: timeout, error, memory or crash."""

    value: float | None
    failure: str | None = None
    detail: str = ""  # the message of the error


def first_messages(scores: Iterable[Score]) -> dict[str, str]:
    """The first message of each kind of failure, without memory addresses, which differ between equal runs."""
    found: dict[str, str] = {}
    for score in scores:
        if score.failure and score.failure not in found:
            found[score.failure] = re.sub(r"0x[0-9a-fA-F]{4,}", "0x...", score.detail)[:300]
    return found


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
        if not all(part.trusted for part in self.task.components()):
            self._processes()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def score(self, examples: Sequence[Example], completions: Sequence[str]) -> list[Score]:
        """One score per completion, in order."""
        if len(examples) != len(completions):
            raise ValueError(f"{len(examples)} examples have {len(completions)} completions: give one each")
        scores: list[Score | None] = []
        remote: list[int] = []
        for i, (example, completion) in enumerate(zip(examples, completions, strict=True)):
            task = self.task.component(example)
            if task.trusted:
                scores.append(Score(task.score(example, completion)))
            else:
                scores.append(None)
                remote.append(i)
        if remote:
            found = self._processes().run([(examples[i], completions[i]) for i in remote])
            for i, (value, failure, detail) in zip(remote, found, strict=True):
                scores[i] = Score(value, failure, detail)
        done = [score for score in scores if score is not None]
        self.failures.update(score.failure for score in done if score.failure)
        self.first_messages = first_messages(done) | self.first_messages
        return done

    def close(self) -> None:
        """End the scoring processes and all processes that they started."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _processes(self) -> "Pool":
        if self._pool is None:
            from fspo.tasks.scoring.pool import Pool

            self._pool = Pool(self.task, self.workers, self.timeout, self.memory_mb)
        return self._pool
