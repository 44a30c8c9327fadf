"""`fspo audit`: how unfair is a run's clipping, over length or over any column, from the table of any trainer."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fspo.audits.analysis import Audit, audit

__all__ = ["Audit", "audit"]


def __getattr__(name: str) -> Any:
    """Loaded on first use, so that importing the package does not load torch."""
    if name in __all__:
        return getattr(importlib.import_module("fspo.audits.analysis"), name)
    raise AttributeError(f"module 'fspo.audits' has no attribute {name!r}")
