"""Metrics to TensorBoard, W&B or trackio, where a run asks for them."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from fspo.config import TrainConfig


class Logger(Protocol):
    def log(self, step: int, values: dict[str, Any]) -> None: ...
    def __enter__(self) -> Logger: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class _TensorBoard:
    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self.writer = SummaryWriter(str(folder / "tensorboard"))

    def log(self, step: int, values: dict[str, Any]) -> None:
        for key, value in _numbers(values).items():
            self.writer.add_scalar(key, value, step)

    def __enter__(self) -> _TensorBoard:
        return self

    def __exit__(self, *_: object) -> None:
        self.writer.close()


class _Tracker:
    """W&B and trackio share one interface."""

    def __init__(self, module: Any, project: str, folder: Path, config: TrainConfig) -> None:
        self.module = module
        module.init(project=project, name=folder.name, config=config.model_dump(mode="json"))

    def log(self, step: int, values: dict[str, Any]) -> None:
        self.module.log(_numbers(values), step=step)

    def __enter__(self) -> _Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        self.module.finish()


def loggers(config: TrainConfig, folder: Path) -> list[Logger]:
    """The loggers that the configuration names; a missing package is an error before the run starts."""
    found: list[Logger] = []
    try:
        if config.log.tensorboard:
            found.append(_TensorBoard(folder))
        if config.log.wandb is not None:
            import wandb

            found.append(_Tracker(wandb, config.log.wandb, folder, config))
        if config.log.trackio is not None:
            import trackio

            found.append(_Tracker(trackio, config.log.trackio, folder, config))
    except ModuleNotFoundError as error:
        raise ValueError(f"the log setting needs the package {error.name!r}: pip install {error.name}") from None
    return found


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    return {key: float(v) for key, v in values.items() if isinstance(v, int | float) and key != "step"}
