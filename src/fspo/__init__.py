"""Length-fair reinforcement learning from verifiable rewards for language models.

    run = fspo.train(fspo.TrainConfig(task="sort", steps=20), "runs/sort")
    print(fspo.audit("runs/sort"))

Parts are imported when they are first used, so that the command line answers at once and can set how threads wait
before torch is loaded. `fairness`, `audit`, `load_run`, `tasks` and what objectives say about their clip ranges need no
torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fspo import advantages, fairness, laboratory, objectives, tasks
    from fspo.api import evaluate, export, load_run, train
    from fspo.audits import audit
    from fspo.config import TrainConfig
    from fspo.objectives import Totals
    from fspo.runs import Observer
    from fspo.runs.recorder import Recorder, record
    from fspo.tasks import Example, Task

__version__ = "0.1.0"

__all__ = [
    "Example", "Observer", "Recorder", "Task", "Totals", "TrainConfig", "__version__", "advantages", "audit",
    "evaluate", "export", "fairness", "laboratory", "load_run", "objectives", "record", "tasks", "train",
]  # fmt: skip

_HOMES = {
    "fspo.api": ("evaluate", "export", "load_run", "train"),
    "fspo.audits": ("audit",),
    "fspo.config": ("TrainConfig",),
    "fspo.objectives": ("Totals",),
    "fspo.runs": ("Observer",),
    "fspo.runs.recorder": ("Recorder", "record"),
    "fspo.tasks": ("Example", "Task"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(importlib.import_module(_HOME_OF[name]), name)
    if name in __all__:
        return importlib.import_module(f"fspo.{name}")
    raise AttributeError(f"module 'fspo' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names only: what `fspo.<TAB>` offers."""
    return sorted(__all__)
