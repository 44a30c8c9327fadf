"""The reference, written from the code: settings, parameters of objectives and tasks, commands, public names."""

from __future__ import annotations

import importlib
import inspect
import re
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from fspo.settings import Settings

BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
EXAMPLE = re.compile(r"^\[dim\](.*?)\[/\] *(.*)$", re.M)  # in the help of a command, with a note after it
API = (
    "fspo", "fspo.objectives", "fspo.advantages", "fspo.fairness", "fspo.laboratory", "fspo.tasks", "fspo.runs",
    "fspo.engines.adapters",
)  # fmt: skip
ENGINES = (  # named here, because their packages import TRL and verl
    "fspo.engines.trl.trainer.FSPOConfig", "fspo.engines.trl.trainer.FSPOTrainer", "fspo.engines.trl.records.recorded",
    "fspo.engines.verl.plugin.PolicyLoss", "fspo.engines.verl.run.collect",
)  # fmt: skip


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds reference/*.md."""
    pages = {"settings": settings(), "parameters": parameters(), "commands": commands()}
    pages |= {f"api/{name.rpartition('.')[2]}": public_names(name) for name in API}
    pages["api/engines"] = "# Engines\n\n" + _documented(ENGINES)
    for name, text in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


# --- settings ---------------------------------------------------------------------------------------------------------


def settings() -> str:
    """One table per part of the configuration."""
    from fspo.config import TrainConfig

    head = (
        "# Every setting\n\nWritten from `fspo.TrainConfig` when this page was built. A setting is given as "
        "`part.key=value` on the command line or under `part:` in a YAML file; unknown keys and values out of "
        "range are refused. [Training](../training.md) says what they do together.\n"
    )
    return head + "\n".join(_sections(TrainConfig, "", "A whole run"))


def _sections(model: type[Settings], prefix: str, title: str) -> Iterator[str]:
    inner = {key: part for key, field in model.model_fields.items() if (part := _nested(field.annotation))}
    plain = {key: field for key, field in model.model_fields.items() if key not in inner or _optional(field.annotation)}
    doc = (inspect.getdoc(model) or "").partition("\n\n")[0]
    yield f"\n## {title}\n\n{doc}\n\n{_table(plain, prefix)}"
    for key, part in inner.items():
        yield from _sections(part, f"{prefix}{key}.", f"{prefix}{key}")


def _nested(annotation: Any) -> type[Settings] | None:
    """The settings class that a field holds, also where it may be null."""
    for part in typing.get_args(annotation) or (annotation,):
        if isinstance(part, type) and issubclass(part, Settings):
            return part
    return None


def _optional(annotation: Any) -> bool:
    return type(None) in typing.get_args(annotation)


def _table(fields: dict[str, FieldInfo], prefix: str = "") -> str:
    rows = ["| setting | type | default | range | what it is |", "|---|---|---|---|---|"]
    for key, field in fields.items():
        cells = (f"`{prefix}{key}`", _type(field.annotation), _default(field), _range(field), field.description or "")
        rows.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def _type(annotation: Any) -> str:
    if annotation is None or annotation is type(None):
        return "null"
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_type(part) for part in arguments))
    if origin is typing.Annotated:
        return _type(arguments[0])
    if nested := _nested(annotation):
        return "table" if issubclass(nested, Settings) else nested.__name__
    names = {dict: "table", list: "list", tuple: "list", str: "text", int: "whole number", float: "number",
             bool: "true or false"}  # fmt: skip
    base = origin or annotation
    if base is typing.Any:
        return "text, table or list"
    inside = dict.fromkeys(_type(part) for part in arguments if part is not Ellipsis) if base in (list, tuple) else {}
    return names.get(base, getattr(base, "__name__", str(base))) + (f" of {', '.join(inside)}" if inside else "")


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "see right" if field.default_factory is not None else "required"
    if field.default is None:
        return "null"
    if isinstance(field.default, bool):
        return str(field.default).lower()
    value = list(field.default) if isinstance(field.default, tuple) else field.default
    return f"`{value}`" if value != "" else "empty"


def _range(field: FieldInfo) -> str:
    bounds = [f"{sign} {getattr(m, key):g}" for m in field.metadata for key, sign in BOUNDS.items() if hasattr(m, key)]
    return ", ".join(bounds)


# --- objectives, advantages and tasks ---------------------------------------------------------------------------------


def parameters() -> str:
    """The parameters of every objective and of every task."""
    from fspo import advantages, objectives
    from fspo.objectives import Objective
    from fspo.tasks.registry import TASKS
    from fspo.tasks.task import Task

    parts = [
        "# Objectives and tasks\n\nWritten from the code when this page was built, as `fspo methods NAME` shows it. "
        "Give a parameter as `objective.KEY=value` or `task.KEY=value`.\n",
        f"\n## Every objective\n\n{_table(Objective.model_fields)}",
        f"\n`advantage` is one of {', '.join(f'`{name}`' for name in advantages.names())}.\n",
    ]
    kinds = [(objectives.names(), objectives.get_class, Objective), (TASKS.names(), TASKS.get, Task)]
    for names, find, base in kinds:
        if base is Task:
            parts.append(f"\n## Every task\n\n{_table(Task.model_fields) if Task.model_fields else ''}")
        for name in names:
            kind = find(name)
            if kind.__module__.partition(".")[0] != "fspo":  # of a package that happens to be installed here
                continue
            own = {key: f for key, f in kind.model_fields.items() if base.model_fields.get(key) != f}
            parts.append(f"\n### {name}\n\n{_capital(kind.summary)}.\n\n{_table(own) if own else ''}")
    return "\n".join(parts)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".")


# --- commands ---------------------------------------------------------------------------------------------------------


def commands() -> str:
    """Every subcommand, from what `--help` says."""
    from typer.main import get_command

    from fspo.cli.main import app

    group: Any = get_command(app)
    parts = ["# Commands\n\nWritten from the code when this page was built; `fspo COMMAND --help` says the same.\n"]
    for name, command in group.commands.items():
        text = inspect.cleandoc(command.help or "")
        examples = [f"{line}  # {note}" if note else line for line, note in EXAMPLE.findall(text)]
        said = EXAMPLE.sub("", text).strip()
        rows = ["| option | default | what it is |", "|---|---|---|"]
        for option in command.params:
            argument = option.param_type_name == "argument"
            label = (
                (option.metavar or option.name).upper()
                if argument
                else ", ".join([*option.opts, *option.secondary_opts])
            )
            default = "" if option.default in (None, False, []) or callable(option.default) else f"`{option.default}`"
            rows.append(f"| `{label}` | {default} | {getattr(option, 'help', '') or ''} |".replace("\n", " "))
        shown = "\n".join(examples).replace("\\[", "[")
        parts.append(f"\n## fspo {name}\n\n{said}\n" + (f"\n```sh\n{shown}\n```\n" if shown else ""))
        parts.append("\n".join(rows) + "\n" if len(rows) > 2 else "")
    return "\n".join(parts)


# --- public names -----------------------------------------------------------------------------------------------------


def public_names(package: str) -> str:
    """The functions and classes of `__all__`."""
    module = importlib.import_module(package)
    names = [name for name in getattr(module, "__all__", _own(module)) if _documentable(getattr(module, name))]
    text = re.sub(r"\n {4}(?=\S)", "\n\n    ", f"{inspect.getdoc(module)}\n", count=1)
    text = re.sub(r"^>>> .*?(?=^$|\Z)", r"```pycon\n\g<0>```\n", text, flags=re.M | re.S)
    return f"# {package}\n\n{text}\n\n{_documented(f'{package}.{name}' for name in names)}"


def _own(module: Any) -> list[str]:
    return [name for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__]  # fmt: skip


def _documentable(value: Any) -> bool:
    return (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__.startswith("fspo")


def _documented(names: Iterable[str]) -> str:
    return "\n".join(f"::: {name}\n" for name in names)
