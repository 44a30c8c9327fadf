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
