"""Tasks: where prompts come from and how answers are scored."""

from fspo.tasks.mixture import Mixture
from fspo.tasks.registry import get, is_code, names, register, summaries
from fspo.tasks.scoring import Score, Scorer
from fspo.tasks.task import ALPHABET, SPLITS, Example, Task

__all__ = [
    "ALPHABET",
    "SPLITS",
    "Example",
    "Mixture",
    "Score",
    "Scorer",
    "Task",
    "get",
    "is_code",
    "names",
    "register",
    "summaries",
]
