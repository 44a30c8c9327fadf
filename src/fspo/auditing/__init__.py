"""`fspo audit`: how unfair is a run's clipping over length, or over any column, of any trainer's table?"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fspo.auditing.findings import Audit, audit

__all__ = ["Audit", "audit"]


def __getattr__(name: str) -> Any:
    """Loaded when first used: the command line imports this package for its help."""
    if name in __all__:
        return getattr(importlib.import_module("fspo.auditing.findings"), name)
    raise AttributeError(f"module 'fspo.auditing' has no attribute {name!r}")
