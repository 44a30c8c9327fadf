"""The objectives and advantages of this package inside verl.

`fspo.engines.verl.plugin` registers them when it is imported, which verl does through the entry point `fspo` of the
group `verl.plugins`; `fspo.engines.verl.PolicyLoss` is the `policy_loss._target_` of a configuration.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fspo.engines.verl.plugin import PolicyLoss

__all__ = ["PolicyLoss"]


def __getattr__(name: str) -> Any:
    """Import verl with the first name that needs it: `fspo train --engine verl --dry-run` works without it."""
    if name in __all__:
        return getattr(importlib.import_module("fspo.engines.verl.plugin"), name)
    raise AttributeError(f"module 'fspo.engines.verl' has no attribute {name!r}")
