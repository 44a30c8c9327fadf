"""TRL's trainers: `FSPOTrainer` with an objective of this package, and `recorded` for those with TRL's own losses."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fspo.engines.trl.records import recorded
    from fspo.engines.trl.trainer import FSPOConfig, FSPOTrainer

__all__ = ["FSPOConfig", "FSPOTrainer", "recorded"]


def __getattr__(name: str) -> Any:
    """Import TRL with the first name that needs it: `fspo train --engine trl --dry-run` works without it."""
    if name in __all__:
        home = "records" if name == "recorded" else "trainer"
        return getattr(importlib.import_module(f"fspo.engines.trl.{home}"), name)
    raise AttributeError(f"module 'fspo.engines.trl' has no attribute {name!r}")
