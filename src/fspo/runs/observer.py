"""The protocol for following a run while it trains, such as the display in the terminal does."""

from __future__ import annotations

from typing import Protocol

from fspo.runs.schema import Evaluated, Metrics, Timing


class Observer(Protocol):
    """Callbacks of a run. Derive from this class and define the methods you need; the others do nothing.

    >>> import fspo
    >>> class Rewards(fspo.Observer):
    ...     def step(self, metrics, timing):
    ...         print(f"step {metrics.step}: {metrics.updates} updates")
    >>> small = {"prompts": 4, "group": 4, "max_new_tokens": 6}
    >>> config = {"model": {"path": "tiny:1x32"}, "warmup": None, "steps": 1, "rollout": small, "eval": {"prompts": 8}}
    >>> run = fspo.train(config | {"task": {"name": "sort", "n_max": 5}}, "runs/watched", observer=Rewards())
    step 1: 8 updates
    """

    def warmup(self, done: int, total: int, solved: float) -> None:
        """The warm start has made `done` of at most `total` steps, and solves this share of validation prompts."""
        return

    def step(self, metrics: Metrics, timing: Timing) -> None:
        """A step is done."""
        return

    def evaluation(self, row: Evaluated) -> None:
        """A held-out evaluation is done."""
        return

    def warn(self, text: str) -> None:
        """Something the user should act on."""
        return

    def note(self, text: str) -> None:
        """Something the user may want to know."""
        return


class NullObserver(Observer):
    """Ignores everything."""
