"""Names in verl of the objectives and advantages of this package, and of options that verl has itself.

The objectives of the FSPO family keep their names, all others are `fspo.NAME`: verl has a `gspo` and a `rloo` of its
own.
"""

from __future__ import annotations

OWN_OPTIONS = {"kl": "actor.use_kl_loss", "entropy_coef": "actor.entropy_coeff"}
"""Options of an objective that verl has outside its policy loss, and their settings."""


def loss_mode(objective: str) -> str:
    """verl's `policy_loss.loss_mode` of an objective."""
    return objective if objective.startswith("fspo") else f"fspo.{objective}"


def adv_estimator(advantage: str) -> str:
    """verl's `algorithm.adv_estimator` of an advantage."""
    return f"fspo.{advantage}"
