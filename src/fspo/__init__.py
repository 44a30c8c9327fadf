"""Length-fair reinforcement learning from verifiable rewards for language models.

Parts are imported when they are first used, so that the command line answers at once and can set how threads wait
before torch is loaded.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fspo import advantages, fairness, laboratory, objectives, tasks
    from fspo.audits import audit
    from fspo.objectives import Totals

__version__ = "0.1.0"

__all__ = ["Totals", "__version__", "advantages", "audit", "fairness", "laboratory", "objectives", "tasks"]

_MEMBERS = {"Totals": "fspo.objectives", "audit": "fspo.audits"}


def __getattr__(name: str) -> Any:
    if name in _MEMBERS:
        return getattr(importlib.import_module(_MEMBERS[name]), name)
    if name in __all__:
        return importlib.import_module(f"fspo.{name}")
    raise AttributeError(f"module 'fspo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
