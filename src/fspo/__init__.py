"""Length-fair reinforcement learning from verifiable rewards for language models.

Parts are imported when they are first used, so that the command line answers at once, and can set how threads wait
before torch is loaded.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fspo import advantages, fairness, objectives, tasks
    from fspo.auditing import audit
    from fspo.objectives import Totals

__version__ = "0.1.0"

__all__ = ["Totals", "advantages", "audit", "fairness", "objectives", "tasks"]


def __getattr__(name: str) -> Any:
    if name == "Totals":
        return importlib.import_module("fspo.objectives").Totals
    if name == "audit":  # the function; its package has another name, because a package would take this one's place
        return importlib.import_module("fspo.auditing").audit
    if name in __all__:
        return importlib.import_module(f"fspo.{name}")
    raise AttributeError(f"module 'fspo' has no attribute {name!r}")
