"""Length-fair reinforcement learning from verifiable rewards for language models."""

from fspo import advantages, fairness, objectives
from fspo.objectives import Totals

__version__ = "0.1.0"

__all__ = ["Totals", "advantages", "fairness", "objectives"]
