"""The base of every checked settings object: unknown keys and bad values give one clear sentence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

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
        """The name of these settings in error messages."""
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
    found = []
    for name, field in model.model_fields.items():
        bounds = {sign: getattr(m, key) for m in field.metadata for key, sign in BOUNDS.items() if hasattr(m, key)}
        tables = [part for part in _parts(field.annotation) if isinstance(part, type) and issubclass(part, Settings)]
        default = "required" if field.is_required() else _shown(field)
        found.append(
            Described(
                prefix + name, _type_name(field.annotation), default,
                ", ".join(f"{sign} {value:g}" for sign, value in bounds.items()), field.description or "",
            )
        )  # fmt: skip
        for table in tables:
            found += described(table, f"{prefix}{name}.")
    return found


BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def _shown(field: FieldInfo) -> str:
    if field.default_factory is not None:  # it depends on other settings
        return ""
    return "null" if field.default is None else "" if isinstance(field.default, Settings) else str(field.default)


def _parts(annotation: Any) -> tuple[Any, ...]:
    """The types of a union; of any other type, the type itself."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


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
        return f"{owner} has no parameter {key!r}{hint(key, model.model_fields)}"
    if first["type"] == "missing":
        return f"{owner} needs the parameter {key!r}: {model.model_fields[key].description}"
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, SettingsError):  # from nested settings, already a full sentence
        return str(cause)
    message = first["msg"].removeprefix("Value error, ")
    return f"{owner}.{key} = {first['input']!r}: {message}" if key else f"{owner}: {message}"


def hint(wrong: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` if a known name is close to the wrong one, else the list of known names."""
    known = sorted(known)
    close = difflib.get_close_matches(wrong, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The settings in which two configurations differ, by dotted name: old and new value."""
    old, new = flat(before), flat(after)
    return {key: (old.get(key), new.get(key)) for key in [*new, *(old.keys() - new)] if old.get(key) != new.get(key)}


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Tables within tables as one table with dotted names."""
    if not isinstance(value, dict) or (prefix and not value):
        return {prefix: value}
    found: dict[str, Any] = {}
    for key, item in value.items():
        found |= flat(item, f"{prefix}.{key}" if prefix else str(key))
    return found
