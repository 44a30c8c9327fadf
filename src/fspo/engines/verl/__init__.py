"""The objectives and advantages of this package inside verl.

`fspo.engines.verl.plugin` registers them when it is imported, which verl does through the entry point `fspo` of the
group `verl.plugins`; `fspo.engines.verl.PolicyLoss` is the `policy_loss._target_` of a configuration.
"""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fspo.engines.verl.plugin import PolicyLoss

__all__ = ["PolicyLoss"]

OWN_OPTIONS = {"kl": "actor.use_kl_loss", "entropy_coef": "actor.entropy_coeff"}
"""Options of an objective that verl has outside its policy loss, and their settings."""


def refuse_own_options(objective: Mapping[str, Any]) -> None:
    """Refuse options of an objective that verl has outside its policy loss."""
    for option, setting in OWN_OPTIONS.items():
        if objective.get(option):
            raise ValueError(f"objective.{option} is an option of verl: set actor_rollout_ref.{setting} instead")


def last_step(checkpoints: Path) -> int:
    """The step that verl resumes from, by its folder of checkpoints or one of them, `global_step_N`; 0 for none."""
    if checkpoints.name.startswith("global_step_"):
        return int(checkpoints.name.removeprefix("global_step_"))
    path = checkpoints / "latest_checkpointed_iteration.txt"
    return int(path.read_text()) if path.is_file() else 0


def __getattr__(name: str) -> Any:
    """Import verl with the first name that needs it: `fspo train --engine verl --dry-run` works without it."""
    if name == "PolicyLoss":
        return importlib.import_module("fspo.engines.verl.plugin").PolicyLoss
    raise AttributeError(f"module 'fspo.engines.verl' has no attribute {name!r}")
