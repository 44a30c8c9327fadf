"""Policy objectives: FSPO, and every method it is compared with, from the same few primitives.

objective = fspo.objectives.get("fspo", c_low=0.03, c_high=0.03, c_dual=0.06)
out = objective(logprobs, old_logprobs, advantages, mask)
"""

from __future__ import annotations

from typing import Any

from fspo.objectives.base import Objective, Output
from fspo.objectives.batch import Totals
from fspo.objectives.bnpo import BNPO
from fspo.objectives.cispo import CISPO
from fspo.objectives.dapo import DAPO
from fspo.objectives.dr_grpo import DrGRPO
from fspo.objectives.fspo import FSPO
from fspo.objectives.fspo_adaptive import FSPOAdaptive
from fspo.objectives.fspo_studentized import FSPOStudentized
from fspo.objectives.gmpo import GMPO
from fspo.objectives.grpo import GRPO
from fspo.objectives.gspo import GSPO
from fspo.objectives.gspo_token import GSPOToken
from fspo.objectives.luspo import LUSPO
from fspo.objectives.options import KLPenalty, Mismatch
from fspo.objectives.ppo import PPO
from fspo.objectives.reinforce import REINFORCE
from fspo.objectives.rloo import RLOO
from fspo.objectives.sapo import SAPO
from fspo.objectives.vespo import VESPO
from fspo.settings import hint

REGISTRY: dict[str, type[Objective]] = {
    cls.name: cls
    for cls in (
        FSPO, FSPOAdaptive, FSPOStudentized,
        PPO, GRPO, DAPO, DrGRPO, BNPO, CISPO, SAPO,
        GSPO, GSPOToken, LUSPO, GMPO, VESPO, RLOO, REINFORCE,
    )
}  # fmt: skip


def names() -> list[str]:
    """The names of all objectives."""
    return list(REGISTRY)


def get(name: str, **parameters: Any) -> Objective:
    """The objective of this name, with its own defaults where a parameter is not given."""
    if name not in REGISTRY:
        raise ValueError(f"there is no objective {name!r}{hint(name, REGISTRY)}")
    return REGISTRY[name](**parameters)


__all__ = [
    "BNPO", "CISPO", "DAPO", "FSPO", "GMPO", "GRPO", "GSPO", "LUSPO", "PPO", "REGISTRY", "REINFORCE", "RLOO",
    "SAPO", "VESPO", "DrGRPO", "FSPOAdaptive", "FSPOStudentized", "GSPOToken", "KLPenalty", "Mismatch",
    "Objective", "Output", "Totals", "get", "names",
]  # fmt: skip
