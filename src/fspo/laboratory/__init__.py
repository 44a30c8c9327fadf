"""The exact laboratory: clipped updates of small policies without sampling noise, for up to 32,768 tokens.

>>> import fspo
>>> problem = fspo.laboratory.conflict([8, 32768])  # short and long prompts pull a shared parameter apart
>>> rule = fspo.objectives.get("fspo", c_low=0.03, c_high=0.03)
>>> fixed = fspo.laboratory.fixed_point(problem, rule, fspo.laboratory.Regime(updates=16))
>>> [round(float(theta), 2) for theta in (fixed[0], problem.optimum()[0])]
[-0.21, -0.21]

Needs numpy and scipy only; a rule is any objective that clips whole responses.
"""

from fspo.laboratory.problem import Kind, Outcomes, Problem, conflict, near
from fspo.laboratory.rollout import Regime, RolloutResult, at_clip_rate, effective_weights, fixed_point, losses, run

__all__ = [
    "Kind", "Outcomes", "Problem", "Regime", "RolloutResult", "at_clip_rate", "conflict",
    "effective_weights", "fixed_point", "losses", "near", "run",
]  # fmt: skip
