"""Following a run while it trains: `Observer`, and the observers that log to TensorBoard, W&B, trackio or MLflow."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
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
    """Passes the numbers of a run to `send`, with their step."""

    def __init__(self, send: Callable[[dict[str, float], int], Any]) -> None:
        self.send = send

    def step(self, metrics: Metrics, timing: Timing) -> None:
        values = metrics.model_dump() | timing.model_dump()
        numbers = {key: float(v) for key, v in values.items() if isinstance(v, int | float) and key != "step"}
        self.send(numbers, metrics.step)

    def evaluation(self, row: Evaluated) -> None:
        values = {"eval/accuracy": row.accuracy, "eval/reward": row.reward}
        self.send({key: value for key, value in values.items() if value is not None}, row.step)


def _write_scalars(writer: Any, numbers: dict[str, float], step: int) -> None:
    for name, value in numbers.items():
        writer.add_scalar(name, value, step)


def loggers(config: TrainConfig, folder: Path, stack: ExitStack) -> list[Observer]:
    """The loggers that `config.log` names, closed with the stack; a missing package is an error before the run."""
    chosen: list[Observer] = []
    settings = config.log
    try:
        if settings.tensorboard:
            from torch.utils.tensorboard.writer import SummaryWriter

            writer = SummaryWriter(str(folder / "tensorboard"))
            stack.callback(writer.close)
            chosen.append(_Logger(lambda numbers, step: _write_scalars(writer, numbers, step)))
        for name, project in (("wandb", settings.wandb), ("trackio", settings.trackio)):
            if project is not None:
                module: Any = import_module(name)
                module.init(project=project, name=folder.name, config=config.model_dump(mode="json"))
                stack.callback(module.finish)
                chosen.append(_Logger(module.log))  # both take the numbers and their step
        if settings.mlflow is not None:
            mlflow: Any = import_module("mlflow")
            mlflow.set_experiment(settings.mlflow)
            mlflow.start_run(run_name=folder.name)
            stack.callback(mlflow.end_run)
            mlflow.log_params({key: str(value)[:500] for key, value in config.model_dump(mode="json").items()})
            chosen.append(_Logger(mlflow.log_metrics))
    except ModuleNotFoundError as error:
        raise ValueError(f"a log setting needs {error.name!r}: pip install 'fspo[{error.name}]'") from None
    return chosen
