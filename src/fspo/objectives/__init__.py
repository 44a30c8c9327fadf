"""Policy objectives: FSPO, and every method it is compared with, from the same few primitives.

>>> import torch, fspo
>>> objective = fspo.objectives.get("fspo", c_low=0.05, c_high=0.05)
>>> old = torch.full((2, 3), -1.0)
>>> logprobs = (old + 0.1).requires_grad_()
>>> out = objective(logprobs, old, torch.tensor([1.0, -1.0]), torch.ones(2, 3, dtype=torch.bool))
>>> out.loss.backward()
>>> out.accepted  # S = 0.3 lies above 0.05 sqrt(3): no gradient where A > 0, and the dual clip acts where A < 0
tensor([0., 0.])

`get` is the one constructor, in own loops as in every trainer: an objective that sums over tokens divides by the mean
length of the batch, so that its gradient has the size of a mean over tokens and learning rates carry over. Names are
those of this package, those that other packages bring by entry point, and `module:Class`.
"""

from __future__ import annotations

from typing import Any

from fspo.objectives.batch import Batch, Totals, masked
from fspo.objectives.clipping import AtRate, Band, Responses, Weighting, accepted
from fspo.objectives.objective import Objective, Output, Surrogate
from fspo.objectives.options import KLPenalty, Mismatch
from fspo.objectives.primitives import capped_ratio, pessimistic
from fspo.objectives.sequence.adaptive_band import HalfWidths
from fspo.objectives.sequence.fspo import FSPO
from fspo.objectives.sequence.fspo_gate import FSPOGate
from fspo.objectives.sequence.fspo_root import FSPORoot
from fspo.objectives.sequence.gspo import GSPO
from fspo.objectives.sequence.length_family import Exponents, LengthFamily, LogBand, SequenceClip
from fspo.objectives.sequence.luspo import LUSPO
from fspo.objectives.sequence.reinforce import REINFORCE
from fspo.objectives.sequence.rloo import RLOO
from fspo.objectives.sequence.vespo import VESPO
from fspo.objectives.token.cispo import CISPO
from fspo.objectives.token.clip_cov import ClipCov
from fspo.objectives.token.dapo import DAPO
from fspo.objectives.token.dppo import DPPO
from fspo.objectives.token.dr_grpo import DrGRPO
from fspo.objectives.token.gmpo import GMPO
from fspo.objectives.token.gpg import GPG
from fspo.objectives.token.grpo import GRPO
from fspo.objectives.token.kl_cov import KLCov
from fspo.objectives.token.ppo import PPO
from fspo.objectives.token.sapo import SAPO
from fspo.objectives.token.token_clip import TokenClip
from fspo.settings import Registry

__all__ = [
    "CISPO", "DAPO", "DEFAULT", "DPPO", "FSPO", "GMPO", "GPG", "GRPO", "GSPO", "LUSPO", "PPO", "REINFORCE",
    "RLOO", "SAPO", "VESPO", "AtRate", "Band", "Batch", "ClipCov", "DrGRPO", "Exponents", "FSPOGate",
    "FSPORoot", "HalfWidths", "KLCov", "KLPenalty", "LengthFamily", "LogBand", "Mismatch", "Objective", "Output",
    "Responses", "SequenceClip", "Surrogate", "TokenClip", "Totals", "Weighting", "accepted", "capped_ratio", "get",
    "get_class", "known", "masked", "names", "pessimistic", "register", "summaries",
]  # fmt: skip

OBJECTIVES: Registry[Objective] = Registry(
    "objective",
    "fspo.objectives",
    Objective,
    [
        FSPO, FSPOGate, FSPORoot, LengthFamily, PPO, GRPO, DAPO, DrGRPO, CISPO, SAPO, GSPO, LUSPO, GMPO,
        VESPO, RLOO, REINFORCE, DPPO, GPG, ClipCov, KLCov,
    ],
    attributes=("name", "summary", "aggregation"),
)  # fmt: skip

ALIASES = {"bnpo": "ppo"}

DEFAULT = "fspo_gate"
"""The objective of a run that names none, on every engine: it needs no range, and old answers do not break it."""

LENGTH_LAWS = ("fspo", "gspo", "rloo")
"""The objectives that clip whole responses by a width of their own in L: sqrt(L), L and constant."""


def register(objective: type[Objective]) -> type[Objective]:
    """Make an objective known under its name, for this process; usable as a class decorator."""
    return OBJECTIVES.register(objective)


def names() -> list[str]:
    """The names of all objectives."""
    return OBJECTIVES.names()


def summaries() -> dict[str, str]:
    """One line per objective, for listings."""
    return OBJECTIVES.summaries()


def get_class(name: str) -> type[Objective]:
    """The class of an objective; `module:Class` is imported."""
    return OBJECTIVES.get(ALIASES.get(name, name) if isinstance(name, str) else name)


def get(name: str, **parameters: Any) -> Objective:
    """The objective of this name, with its own defaults where a parameter is not given."""
    return get_class(name)(**parameters)


def known(name: str) -> bool:
    """Whether the name gives an objective without importing a module that only the name points to."""
    return name in ALIASES or OBJECTIVES.known(name)


def is_foreign(objective: Objective) -> bool:
    """Whether its class is not of this package: an error in it must not stop what is shown about the others."""
    return type(objective).__module__.partition(".")[0] != "fspo"
