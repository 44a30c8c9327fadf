"""TRL's GRPOTrainer with the objectives of this package: `from fspo.engines.trl import FSPOConfig, FSPOTrainer`."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fspo.engines.trl.arguments import FSPOConfig
    from fspo.engines.trl.trainer import FSPOTrainer

__all__ = ["FSPOConfig", "FSPOTrainer"]

_HOMES = {"FSPOConfig": "fspo.engines.trl.arguments", "FSPOTrainer": "fspo.engines.trl.trainer"}


def __getattr__(name: str) -> Any:
    """Import TRL with the first name that needs it: `fspo train --engine trl --dry-run` works without it."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'fspo.engines.trl' has no attribute {name!r}")
