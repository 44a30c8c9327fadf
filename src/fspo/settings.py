"""Checked settings, and classes of them that are chosen by name.

`Settings` is the base of every configuration, objective and task: unknown keys and bad values give one clear sentence.
A `Registry` finds a class by its name: built in, brought by another installed package through an entry point, or
written `module:Class`.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import inspect
import operator
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo


class SettingsError(ValueError):
    """A bad setting, described in one sentence."""


class Settings(BaseModel):
    """Frozen; unknown keys are refused, and a bad value raises a ValueError of one sentence."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise SettingsError(_sentence(type(self), error)) from None

    @classmethod
    def owner(cls) -> str:
        """The name of these settings in error messages; empty where their keys stand alone."""
        return cls.__name__


@dataclass(frozen=True)
class Described:
    """A setting, for listings."""

    name: str  # dotted, where it belongs to a table within the table
    type: str
    default: str
    range: str
    description: str


def described(model: type[Settings], prefix: str = "") -> list[Described]:
    """Every setting of a class in order, those of an optional table within it after that table."""
    rows = []
    for name, field in model.model_fields.items():
        bounds = {sign: getattr(m, key) for m in field.metadata for key, sign in BOUNDS.items() if hasattr(m, key)}
        tables = [part for part in _parts(field.annotation) if isinstance(part, type) and issubclass(part, Settings)]
        default = "required" if field.is_required() else _shown(field)
        rows.append(
            Described(
                prefix + name, _type_name(field.annotation), default,
                ", ".join(f"{sign} {value:g}" for sign, value in bounds.items()), field.description or "",
            )
        )  # fmt: skip
        for table in tables:
            rows += described(table, f"{prefix}{name}.")
    return rows


BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def _shown(field: FieldInfo) -> str:
    if field.default_factory is not None:  # it depends on other settings
        return ""
    return "null" if field.default is None else "" if isinstance(field.default, Settings) else str(field.default)


def _parts(annotation: Any) -> tuple[Any, ...]:
    """The types of a union; of any other type, the type itself."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return tuple(get_args(part)[0] if get_origin(part) is Annotated else part for part in parts)


def _type_name(annotation: Any) -> str:
    names = []
    for part in _parts(annotation):
        if get_origin(part) is Literal:
            names += [str(value) for value in get_args(part)]
        elif get_origin(part) is not None:
            names.append(str(part).replace("typing.", ""))
        elif isinstance(part, type) and issubclass(part, Settings):
            names.append("table")
        else:
            names.append("null" if part is type(None) else "any" if part is Any else str(part.__name__))
    return " | ".join(names)


def _sentence(model: type[Settings], error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"] if not str(part).startswith(("literal[", "constrained-")))
    owner = model.owner()
    if first["type"] == "extra_forbidden":
        none = f"{owner} has no parameter" if owner else "there is no setting"
        return f"{none} {key!r}{hint(key, model.model_fields)}"
    if first["type"] == "missing":
        return f"{owner} needs the parameter {key!r}: {model.model_fields[key].description}"
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, SettingsError):  # from nested settings, already a full sentence
        return str(cause)
    message = first["msg"].removeprefix("Value error, ")
    key = ".".join(filter(None, (owner, key)))
    return f"{key} = {first['input']!r}: {message}" if first["loc"] else ": ".join(filter(None, (owner, message)))


def hint(wrong: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` if a known name is close to the wrong one, else the list of known names."""
    known = sorted(known)
    close = difflib.get_close_matches(wrong, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Tables within tables as one table with dotted names."""
    if not isinstance(value, dict) or (prefix and not value):
        return {prefix: value}
    items: dict[str, Any] = {}
    for key, item in value.items():
        items |= flat(item, f"{prefix}.{key}" if prefix else str(key))
    return items


# --- classes by name ---------------------------------------------------------------------------------------------

T = TypeVar("T")

_registries: list[Registry[Any]] = []


class Registry(Generic[T]):
    """The classes of one kind, all derived from `base`; `group` is the entry-point group of other packages.

    `attributes` are the class attributes that every class must set, `name` among them.
    """

    def __init__(
        self, kind: str, group: str, base: Any, built_in: Iterable[type[T]], attributes: tuple[str, ...]
    ) -> None:
        self.kind, self.group, self.base, self.attributes = kind, group, base, attributes
        self._classes: dict[str, type[T]] = {_name(cls): cls for cls in built_in}
        self._entry_points: dict[str, importlib.metadata.EntryPoint] | None = None
        self._built_in = frozenset(self._classes)
        _registries.append(self)

    def register(self, cls: type[T]) -> type[T]:
        """Make a class known under its name; another class of the same name is refused."""
        name = _name(self._checked(cls, repr(cls)))
        taken = self._classes.get(name)
        if taken is not None and (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"the {self.kind} {name!r} exists already ({taken.__module__}): choose another name")
        self._classes[name] = cls
        return cls

    def registered(self) -> set[str]:
        """The names that this process has registered: no other process knows them."""
        return self._classes.keys() - self._built_in - self._others().keys()

    def names(self) -> list[str]:
        """All names, built in first; entry points are not loaded."""
        return list(dict.fromkeys([*self._classes, *self._others()]))

    def known(self, name: str) -> bool:
        """Whether the name gives a class without importing a module that only the name points to."""
        module, colon, attribute = name.partition(":")
        imported = vars(sys.modules[module]) if colon and module in sys.modules else {}
        return name in self.names() or attribute.partition(".")[0] in imported

    def get(self, name: str) -> type[T]:
        """The class of a name; an entry point or `module:Class` is imported."""
        if not isinstance(name, str):
            raise ValueError(f"{name!r} is not a known {self.kind}; known: {', '.join(self.names())}")
        if name in self._classes:
            return self._classes[name]
        if entry := self._others().get(name):
            self._classes[name] = self._imported(name, f"{entry.module}:{entry.attr}")
            return self._classes[name]
        if ":" in name:
            return self._imported(name, name)
        raise ValueError(f"there is no {self.kind} {name!r}{hint(name, self.names())}")

    def summaries(self) -> dict[str, str]:
        """The one-line summary of every class by name, or why it cannot be loaded."""
        summaries = {}
        for name in self.names():
            try:
                cls: Any = self.get(name)
                summaries[name] = str(cls.summary)
            except ValueError as error:  # a package that is broken must not hide the others
                summaries[name] = str(error)
        return summaries

    def _imported(self, name: str, target: str) -> type[T]:
        """The class of this name, from `module:Class`."""
        module, _, attribute = target.partition(":")
        try:
            imported = operator.attrgetter(attribute)(importlib.import_module(module))
        except Exception as error:
            advice = "fix that module, or write module:Class of a module on the path"
            if isinstance(error, ModuleNotFoundError) and error.name == module:
                advice = f"write module:Class of a module on the path{hint(module, self.names())}"
            cause = " ".join(f"{type(error).__name__}: {error}".split())
            raise ValueError(f"the {self.kind} {name!r} cannot be loaded ({cause}): {advice}") from error
        return self._checked(imported, name)

    def _checked(self, cls: Any, name: str) -> type[T]:
        if not isinstance(cls, type) or not issubclass(cls, self.base):
            raise ValueError(f"{name} is no {self.kind}: it must be a class derived from {self.base.__name__}")
        missing = [attribute for attribute in self.attributes if not hasattr(cls, attribute)]
        if missing:
            raise ValueError(f"{name} is no complete {self.kind}: set its class attribute {missing[0]!r}")
        if inspect.isabstract(cls):
            missing = sorted(getattr(cls, "__abstractmethods__", ()))
            raise ValueError(f"{name} is no complete {self.kind}: define its method {missing[0]!r}")
        return cls

    def _others(self) -> dict[str, importlib.metadata.EntryPoint]:
        """Entry points of other packages, looked up once; they replace no built-in class."""
        if self._entry_points is None:
            entries = importlib.metadata.entry_points(group=self.group)
            self._entry_points = {entry.name: entry for entry in entries if entry.name not in self._built_in}
        return self._entry_points


def only_here(names: Iterable[str]) -> list[str]:
    """Names that only this process can resolve: registered at run time, or defined in `__main__`."""
    local = {name for registry in _registries for name in registry.registered()}
    return [name for name in names if name in local or name.startswith("__main__:")]


def _name(cls: type[Any]) -> str:
    name: str = cls.name
    return name
