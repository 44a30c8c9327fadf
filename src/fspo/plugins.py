"""Classes by name: built in, brought by other installed packages through entry points, or written `module:Class`."""

from __future__ import annotations

import importlib
import importlib.metadata
import traceback
from collections.abc import Iterable
from operator import attrgetter
from typing import Any, Generic, TypeVar

from fspo.settings import hint

T = TypeVar("T")


class Registry(Generic[T]):
    """The classes of one kind, all derived from `base`; `group` is the entry-point group of other packages."""

    def __init__(self, kind: str, group: str, base: Any, built_in: Iterable[type[T]]) -> None:
        self.kind, self.group, self.base = kind, group, base
        self._classes: dict[str, type[T]] = {_name(cls): cls for cls in built_in}
        self._entry_points: dict[str, importlib.metadata.EntryPoint] | None = None

    def register(self, cls: type[T]) -> type[T]:
        """Make a class known under its name; another class of the same name is refused."""
        name = _name(self._checked(cls, repr(cls)))
        taken = self._classes.get(name)
        if taken is not None and (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"the {self.kind} {name!r} exists already ({taken.__module__}): choose another name")
        self._classes[name] = cls
        return cls

    def names(self) -> list[str]:
        """All names, built in first; entry points are not loaded."""
        return list(dict.fromkeys([*self._classes, *self._others()]))

    def get(self, name: str) -> type[T]:
        """The class of a name; an entry point or `module:Class` is imported."""
        if not isinstance(name, str):
            raise ValueError(f"{name!r} is no name of a {self.kind}; known: {', '.join(self.names())}")
        if name in self._classes:
            return self._classes[name]
        if name in self._others():
            self._classes[name] = self._loaded(self._others()[name])
            return self._classes[name]
        if ":" in name:
            return self._imported(name)
        raise ValueError(f"there is no {self.kind} {name!r}{hint(name, self.names())}")

    def _loaded(self, entry: importlib.metadata.EntryPoint) -> type[T]:
        try:
            found = entry.load()
        except Exception as error:  # whatever the code of another package raises
            raise ValueError(
                f"the {self.kind} {entry.name!r} cannot be loaded from {entry.value} ({_reason(error)}): mend or "
                "uninstall the package that declares it"
            ) from error
        return self._named(found, entry.name)

    def _imported(self, name: str) -> type[T]:
        module, _, attribute = name.partition(":")
        try:
            found = attrgetter(attribute)(importlib.import_module(module))
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(
                f"the {self.kind} {name!r} cannot be loaded ({error}): "
                f"write module:Class of a module on the path{hint(module, self.names())}"
            ) from error
        except Exception as error:  # whatever the user's own code raises
            raise ValueError(f"the {self.kind} {name!r} cannot be loaded ({_reason(error)}): mend {module}") from error
        return self._named(found, name)

    def _checked(self, found: Any, name: str) -> type[T]:
        if not isinstance(found, type) or not issubclass(found, self.base):
            raise ValueError(f"{name} is no {self.kind}: it must be a class derived from {self.base.__name__}")
        return found

    def _named(self, found: Any, name: str) -> type[T]:
        """A class of another package or file, with what listings show."""
        for needed in ("name", "summary"):
            if not isinstance(getattr(self._checked(found, name), needed, None), str):
                raise ValueError(f'{name} has no {needed}: add `{needed}: ClassVar[str] = "..."` to the class')
        return self._checked(found, name)

    def _others(self) -> dict[str, importlib.metadata.EntryPoint]:
        """Entry points of other packages, looked up once."""
        if self._entry_points is None:
            self._entry_points = {entry.name: entry for entry in importlib.metadata.entry_points(group=self.group)}
        return self._entry_points


def _reason(error: Exception) -> str:
    """What was raised and, where it is known, in which line of which file."""
    places = traceback.extract_tb(error.__traceback__)
    where = f", line {places[-1].lineno} of {places[-1].filename}" if places and places[-1].lineno else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}" + ("" if isinstance(error, SyntaxError) else where)


def _name(cls: type[Any]) -> str:
    name: str = cls.name
    return name
