"""The objectives and advantages of this package inside verl.

`fspo.engines.verl.plugin` registers them when it is imported, which verl does through the entry point `fspo` of the
group `verl.plugins`; `fspo.engines.verl.PolicyLoss` is the `policy_loss._target_` of a configuration. The objectives
of the FSPO family keep their names in verl, all others are `fspo.NAME`: verl has a `gspo` and a `rloo` of its own.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fspo.engines.verl.plugin import PolicyLoss

__all__ = ["PolicyLoss", "adv_estimator", "loss_mode"]

OWN_OPTIONS = {"kl": "actor.use_kl_loss", "entropy_coef": "actor.entropy_coeff"}
"""Options of an objective that verl has outside its policy loss, and their settings."""


def loss_mode(objective: str) -> str:
    """verl's `policy_loss.loss_mode` of an objective."""
    return objective if objective.startswith("fspo") else f"fspo.{objective}"


def adv_estimator(advantage: str) -> str:
    """verl's `algorithm.adv_estimator` of an advantage."""
    return f"fspo.{advantage}"


def __getattr__(name: str) -> Any:
    """Import verl with the first name that needs it: `fspo train --engine verl --dry-run` works without it."""
    if name == "PolicyLoss":
        return importlib.import_module("fspo.engines.verl.plugin").PolicyLoss
    raise AttributeError(f"module 'fspo.engines.verl' has no attribute {name!r}")
