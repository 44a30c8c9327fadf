"""Tasks: where prompts come from and how answers are scored.

>>> import fspo
>>> task = fspo.tasks.get({"name": "sort", "n_max": 5})
>>> example = task.example("train", 0)
>>> task.score(example, example.solution)
1.0
"""

from fspo.tasks.mixture import Mixture
from fspo.tasks.registry import check_importable, get, get_class, names, register, spec, summaries
from fspo.tasks.scoring import Score, Scorer
from fspo.tasks.task import SPLITS, Example, Task

__all__ = [
    "SPLITS",
    "Example",
    "Mixture",
    "Score",
    "Scorer",
    "Task",
    "check_importable",
    "get",
    "get_class",
    "names",
    "register",
    "spec",
    "summaries",
]
