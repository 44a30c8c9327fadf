"""Tasks by name: what a configuration or a command line writes becomes a task here."""

from collections.abc import Mapping, Sequence
from typing import Any

from fspo.settings import hint
from fspo.tasks.base import Task
from fspo.tasks.builtin import BUILTIN
from fspo.tasks.code import Code
from fspo.tasks.custom import Custom
from fspo.tasks.mixture import Mixture
from fspo.tasks.qa import HuggingFace, Jsonl
from fspo.tasks.reasoning import ReasoningGym

SOURCES: tuple[type[Task], ...] = (*BUILTIN, ReasoningGym, Jsonl, HuggingFace, Custom, Code)
TASKS = {task.name: task for task in SOURCES}

Spec = str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] | Task


def names() -> list[str]:
    return list(TASKS)


def summaries() -> dict[str, str]:
    """One line a task, for listings."""
    return {name: task.summary for name, task in TASKS.items()}


def get(spec: Spec) -> Task:
    """The task that a name, a {"name": ..., parameters} or a list of those with "weight" stands for."""
    if isinstance(spec, Task):
        return spec
    if isinstance(spec, str):
        return _one({"name": spec})
    if isinstance(spec, Mapping):
        return _one(spec)
    if not isinstance(spec, Sequence) or not spec:
        raise ValueError(f"{spec!r} is not a task: write a name, a table with a name, or a list of those")
    entries: list[dict[str, Any]] = [{"name": entry} if isinstance(entry, str) else dict(entry) for entry in spec]
    weights: tuple[Any, ...] = tuple(entry.pop("weight", 1.0) for entry in entries)
    return Mixture(parts=tuple(_one(entry) for entry in entries), weights=weights)


def _one(spec: Mapping[str, Any]) -> Task:
    parameters = {str(key): value for key, value in spec.items() if key != "name"}
    if "name" not in spec:
        raise ValueError(f"the task {dict(spec)} has no name: add 'name', one of {', '.join(TASKS)}")
    name, colon, argument = str(spec["name"]).partition(":")
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}{hint(name, TASKS)}")
    task = TASKS[name]
    if colon and not task.argument:
        raise ValueError(f"task {name!r} takes nothing after a colon: write {{'name': {name!r}, ...}}")
    if argument and task.argument:
        parameters[task.argument] = argument
    return task(**parameters)
