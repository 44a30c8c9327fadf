"""Where prompts come from and how answers are scored."""

from fspo.tasks.base import ALPHABET, SPLITS, Example, Task
from fspo.tasks.mixture import Mixture
from fspo.tasks.registry import get, names, summaries
from fspo.tasks.scoring import Score, Scorer

__all__ = ["ALPHABET", "SPLITS", "Example", "Mixture", "Score", "Scorer", "Task", "get", "names", "summaries"]
