"""Following a run while it trains: `Observer`, and the observers that log to TensorBoard, W&B or trackio."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fspo.runs.schema import Evaluated, Metrics, Timing

if TYPE_CHECKING:
    from fspo.config import TrainConfig


class Observer:
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

    def step(self, metrics: Metrics, timing: Timing) -> None:
        """A step is done."""

    def evaluation(self, row: Evaluated) -> None:
        """A held-out evaluation is done."""

    def warn(self, text: str) -> None:
        """Something the user should act on."""

    def note(self, text: str) -> None:
        """Something the user may want to know."""


class _Logger(Observer):
    """Sends the numbers of a run to a logger."""

    def step(self, metrics: Metrics, timing: Timing) -> None:
        self.log(metrics.step, metrics.model_dump() | timing.model_dump())

    def evaluation(self, row: Evaluated) -> None:
        self.log(row.step, {"eval/accuracy": row.accuracy, "eval/reward": row.reward})

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        numbers = {key: float(v) for key, v in values.items() if isinstance(v, int | float) and key != "step"}
        self.send(step, numbers)

    def send(self, step: int, numbers: dict[str, float]) -> None:
        raise NotImplementedError


class _TensorBoard(_Logger):
    def __init__(self, folder: Path, stack: ExitStack) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self.writer = SummaryWriter(str(folder / "tensorboard"))
        stack.callback(self.writer.close)

    def send(self, step: int, numbers: dict[str, float]) -> None:
        for key, value in numbers.items():
            self.writer.add_scalar(key, value, step)


class _Tracker(_Logger):
    """W&B and trackio, which share one interface."""

    def __init__(self, module: Any, project: str, folder: Path, config: dict[str, Any], stack: ExitStack) -> None:
        self.module = module
        module.init(project=project, name=folder.name, config=config)
        stack.callback(module.finish)

    def send(self, step: int, numbers: dict[str, float]) -> None:
        self.module.log(numbers, step=step)


def loggers(config: TrainConfig, folder: Path, stack: ExitStack) -> list[Observer]:
    """The loggers that `config.log` names, closed with the stack; a missing package is an error before the run."""
    chosen: list[Observer] = []
    settings = config.log
    try:
        if settings.tensorboard:
            chosen.append(_TensorBoard(folder, stack))
        if settings.wandb is not None:
            import wandb

            chosen.append(_Tracker(wandb, settings.wandb, folder, config.model_dump(mode="json"), stack))
        if settings.trackio is not None:
            import trackio

            chosen.append(_Tracker(trackio, settings.trackio, folder, config.model_dump(mode="json"), stack))
    except ModuleNotFoundError as error:
        raise ValueError(f"the log setting needs the package {error.name!r}: pip install {error.name}") from None
    return chosen
