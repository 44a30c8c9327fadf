"""Policy objectives: FSPO, and every method it is compared with, from the same few primitives.

>>> import torch, fspo
>>> objective = fspo.objectives.get("fspo", c_low=0.05, c_high=0.05)
>>> old = torch.full((2, 3), -1.0)
>>> logprobs = (old + 0.1).requires_grad_()
>>> out = objective(logprobs, old, torch.tensor([1.0, -1.0]), torch.ones(2, 3, dtype=torch.bool))
>>> out.loss.backward()
>>> out.accepted  # S = 0.3 lies above 0.05 sqrt(3): no gradient where A > 0, and the dual clip acts where A < 0
tensor([0., 0.])
"""

from __future__ import annotations

from fspo.objectives.batch import Totals
from fspo.objectives.clipping import AtRate, Band, Responses, Weighting, accepted, gaussian_rate
from fspo.objectives.objective import Objective, Output, Surrogate
from fspo.objectives.options import KLPenalty, Mismatch
from fspo.objectives.registry import (
    LENGTH_LAWS,
    for_trainer,
    get,
    get_class,
    is_foreign,
    known,
    names,
    register,
    summaries,
)
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

__all__ = [
    "BNPO",
    "CISPO",
    "DAPO",
    "FSPO",
    "GMPO",
    "GRPO",
    "GSPO",
    "LENGTH_LAWS",
    "LUSPO",
    "PPO",
    "REINFORCE",
    "RLOO",
    "SAPO",
    "VESPO",
    "AtRate",
    "Band",
    "DrGRPO",
    "FSPOAdaptive",
    "FSPORoot",
    "FSPORootAdaptive",
    "FSPOStudentized",
    "GSPOToken",
    "KLPenalty",
    "LengthFamily",
    "Mismatch",
    "Objective",
    "Output",
    "Responses",
    "Surrogate",
    "Totals",
    "Weighting",
    "accepted",
    "for_trainer",
    "gaussian_rate",
    "get",
    "get_class",
    "is_foreign",
    "known",
    "names",
    "register",
    "summaries",
]  # fmt: skip
