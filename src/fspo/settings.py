"""The base of every checked settings object: unknown keys and bad values give one clear sentence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError


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
