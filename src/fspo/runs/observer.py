"""The protocol of whatever follows a run while it goes, such as the display in the terminal."""

from __future__ import annotations

from typing import Protocol

from fspo.runs.schema import Evaluated, Metrics, Timing


class Observer(Protocol):
    """Is told what a run does, as it happens."""

    def warmup(self, done: int, total: int, solved: float) -> None:
        """The warm start has made `done` of at most `total` steps, and solves this share of validation prompts."""

    def step(self, metrics: Metrics, timing: Timing) -> None:
        """A step is done."""

    def evaluation(self, row: Evaluated) -> None:
        """A held-out evaluation is done."""

    def warn(self, text: str) -> None:
        """Something the user should act on."""

    def note(self, text: str) -> None:
        """Something the user may want to know."""


class NullObserver:
    """Ignores everything."""

    def warmup(self, done: int, total: int, solved: float) -> None: ...
    def step(self, metrics: Metrics, timing: Timing) -> None: ...
    def evaluation(self, row: Evaluated) -> None: ...
    def warn(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...
