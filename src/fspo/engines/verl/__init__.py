"""The objectives and advantages of this package inside verl.

`fspo.engines.verl.plugin` registers them when it is imported, which verl does through the entry point `fspo` of the
group `verl.plugins`; `fspo.engines.verl.PolicyLoss` is the `policy_loss._target_` of a configuration. The objectives
of the FSPO family keep their names in verl, all others are `fspo.NAME`: verl has a `gspo` and a `rloo` of its own.
"""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fspo.engines.verl.plugin import PolicyLoss

__all__ = ["PolicyLoss", "adv_estimator", "loss_mode"]

OWN_OPTIONS = {"kl": "actor.use_kl_loss", "entropy_coef": "actor.entropy_coeff"}
"""Options of an objective that verl has outside its policy loss, and their settings."""

EVERY_RANK: dict[str, Any] = {
    "pipeline_model_parallel_size": 1, "pipeline_parallel_size": 1, "pp_size": 1, "dynamic_context_parallel": False,
}  # fmt: skip
"""Settings of verl's engines that give some ranks no loss, or give rows to several ranks; and where they do not."""


def refuse_layout(engine: Mapping[str, Any]) -> None:
    """Refuse a layout in which ranks cannot close an update together, each after its share of the rows."""
    for name, plain in EVERY_RANK.items():
        if (value := engine.get(name, plain)) != plain:
            raise ValueError(
                f"{name} = {value} is possible with policy_loss.stateless=true only (a fixed band, no records): "
                "otherwise every rank must see the loss of its own share of the rows"
            )


def last_step(checkpoints: Path) -> int:
    """The step that verl resumes from, by its folder of checkpoints or one of them, `global_step_N`; 0 for none."""
    if checkpoints.name.startswith("global_step_"):
        return int(checkpoints.name.removeprefix("global_step_"))
    path = checkpoints / "latest_checkpointed_iteration.txt"
    return int(path.read_text()) if path.is_file() else 0


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
