"""Tasks by name, from a configuration or a command line; `fspo.settings.Registry` finds their classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fspo.settings import Registry
from fspo.tasks.code import Code
from fspo.tasks.free_form import FREE_FORM
from fspo.tasks.mixture import Mixture
from fspo.tasks.procedural import BUILTIN
from fspo.tasks.reasoning import ReasoningGym
from fspo.tasks.rows import Custom, HuggingFace, Jsonl
from fspo.tasks.task import Task
from fspo.tasks.verifiers_env import Verifiers

TASKS: Registry[Task] = Registry(
    "task",
    "fspo.tasks",
    Task,
    [*BUILTIN, *FREE_FORM, ReasoningGym, Jsonl, HuggingFace, Custom, Code, Verifiers],
    attributes=("name", "summary"),
)

Spec = str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] | Task


def register(task: type[Task]) -> type[Task]:
    """Make a task known under its name, for this process; usable as a class decorator."""
    return TASKS.register(task)


def names() -> list[str]:
    """The names of all tasks."""
    return TASKS.names()


def get_class(name: str) -> type[Task]:
    """The class of a task by its name, with or without an argument after a colon; `module:Class` is imported."""
    kind = name.partition(":")[0]
    return TASKS.get(kind if kind in TASKS.names() else name)


def summaries() -> dict[str, str]:
    """One line per task, for listings."""
    return TASKS.summaries()


def get(spec: Spec) -> Task:
    """The task of a name, of a table {"name": ..., parameters}, or of a list of those with a "weight" each."""
    if isinstance(spec, Task):
        return spec
    if isinstance(spec, str):
        return _one({"name": spec})
    if isinstance(spec, Mapping):
        return _one(spec)
    if not isinstance(spec, Sequence) or not spec:
        raise ValueError(f"{spec!r} is not a task: write a name, a table with a name, or a list of those")
    if wrong := [entry for entry in spec if not isinstance(entry, str | Mapping)]:
        raise ValueError(f"{wrong[0]!r} is not a part of a mixture: write a name, or a table with a name and a weight")
    entries: list[dict[str, Any]] = [{"name": entry} if isinstance(entry, str) else dict(entry) for entry in spec]
    weights: tuple[Any, ...] = tuple(entry.pop("weight", 1.0) for entry in entries)
    return Mixture(parts=tuple(_one(entry) for entry in entries), weights=weights)


def spec(task: Task) -> Any:
    """The entry of a task in a configuration, which `get` reads: its name and what differs from defaults."""
    if isinstance(task, Mixture):
        return [{**spec(part), "weight": weight} for part, weight in zip(task.parts, task.weights, strict=True)]
    cls = type(task)
    own = cls.name not in TASKS.names() or TASKS.get(cls.name) is not cls
    check_importable(task, registered=not own)
    values = task.model_dump(mode="json", exclude_defaults=True)
    return {"name": f"{cls.__module__}:{cls.__qualname__}" if own else cls.name, **values}


def check_importable(task: Task, *, registered: bool = True) -> None:
    """Refuse a task that other processes cannot import; one that is registered and trusted needs no other process."""
    for part in task.components():
        cls = type(part)
        local = cls.__module__ == "__main__" or "<locals>" in cls.__qualname__
        if local and not (registered and part.trusted):
            raise ValueError(
                f"the task {cls.__name__} is not in a module, so that the processes that score answers and a resumed "
                f"run cannot import it: put the class into a file of its own, such as {cls.name}.py"
            )


def _one(spec: Mapping[str, Any]) -> Task:
    parameters = {str(key): value for key, value in spec.items() if key != "name"}
    full = spec.get("name")
    if not isinstance(full, str):
        raise ValueError(f"the task {dict(spec)} has no name: add 'name', one of {', '.join(TASKS.names())}")
    task = get_class(full)
    name, colon, argument = full.partition(":")
    if colon and name in TASKS.names():  # else it is module:Class
        if not task.argument:
            raise ValueError(f"task {name!r} takes nothing after a colon: write {{'name': {name!r}, ...}}")
        parameters |= {task.argument: argument} if argument else {}
    return task(**parameters)
