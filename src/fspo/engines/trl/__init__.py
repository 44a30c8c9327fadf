"""TRL's GRPOTrainer with the objectives of this package: `from fspo.engines.trl import FSPOConfig, FSPOTrainer`."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fspo.engines.trl.trainer import FSPOConfig, FSPOTrainer

__all__ = ["FSPOConfig", "FSPOTrainer"]


def __getattr__(name: str) -> Any:
    """Import TRL with the first name that needs it: `fspo train --engine trl --dry-run` works without it."""
    if name in __all__:
        return getattr(importlib.import_module("fspo.engines.trl.trainer"), name)
    raise AttributeError(f"module 'fspo.engines.trl' has no attribute {name!r}")
