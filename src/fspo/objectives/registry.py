"""Objectives by name: those of this package, those that other packages bring, and `module:Class`."""

from __future__ import annotations

from typing import Any

from fspo.objectives.objective import Objective
from fspo.objectives.sequence.fspo import FSPO
from fspo.objectives.sequence.fspo_adaptive import FSPOAdaptive
from fspo.objectives.sequence.fspo_root import FSPORoot
from fspo.objectives.sequence.fspo_root_adaptive import FSPORootAdaptive
from fspo.objectives.sequence.fspo_studentized import FSPOStudentized
from fspo.objectives.sequence.gspo import GSPO
from fspo.objectives.sequence.gspo_token import GSPOToken
from fspo.objectives.sequence.length_family import LengthFamily
from fspo.objectives.sequence.luspo import LUSPO
from fspo.objectives.sequence.reinforce import REINFORCE
from fspo.objectives.sequence.rloo import RLOO
from fspo.objectives.sequence.vespo import VESPO
from fspo.objectives.token.bnpo import BNPO
from fspo.objectives.token.cispo import CISPO
from fspo.objectives.token.dapo import DAPO
from fspo.objectives.token.dr_grpo import DrGRPO
from fspo.objectives.token.gmpo import GMPO
from fspo.objectives.token.grpo import GRPO
from fspo.objectives.token.ppo import PPO
from fspo.objectives.token.sapo import SAPO
from fspo.settings import Registry

OBJECTIVES: Registry[Objective] = Registry(
    "objective",
    "fspo.objectives",
    Objective,
    [
        FSPO, FSPOAdaptive, FSPORoot, FSPORootAdaptive, FSPOStudentized, LengthFamily,
        PPO, GRPO, DAPO, DrGRPO, BNPO, CISPO, SAPO,
        GSPO, GSPOToken, LUSPO, GMPO, VESPO, RLOO, REINFORCE,
    ],
    attributes=("name", "summary", "aggregation"),
)  # fmt: skip

LENGTH_LAWS = ("fspo", "gspo", "rloo")
"""The objectives that clip whole responses by a width of their own in L: sqrt(L), L and constant."""


def register(objective: type[Objective]) -> type[Objective]:
    """Make an objective known under its name, for this process; usable as a class decorator."""
    return OBJECTIVES.register(objective)


def names() -> list[str]:
    """The names of all objectives."""
    return OBJECTIVES.names()


def get_class(name: str) -> type[Objective]:
    """The class of an objective; `module:Class` is imported."""
    return OBJECTIVES.get(name)


def get(name: str, **parameters: Any) -> Objective:
    """The objective of this name, with its own defaults where a parameter is not given."""
    return get_class(name)(**parameters)


def for_trainer(name: str, **parameters: Any) -> Objective:
    """The objective as a trainer uses it: one that sums over tokens divides by the mean length of the batch.

    Its gradient then has the size of one that is averaged over tokens, so that learning rates, limits on the gradient
    norm and penalties carry over. A `reference_length` that is given, or that a class has set for itself, is kept.
    """
    kind = get_class(name)
    length = kind.model_fields.get("reference_length")
    if length is not None and length.default == 1.0:
        parameters = {"reference_length": "mean", **parameters}
    return kind(**parameters)


def known(name: str) -> bool:
    """Whether the name gives an objective without importing a module that only the name points to."""
    return OBJECTIVES.known(name)


def is_foreign(objective: Objective) -> bool:
    """Whether its class is not of this package: an error in it must not stop what is shown about the others."""
    return type(objective).__module__.partition(".")[0] != "fspo"


def summaries() -> dict[str, str]:
    """One line per objective, for listings."""
    return OBJECTIVES.summaries()
