"""Configurations that are part of the package. `recipe:NAME` stands for one wherever the path of a file is taken.

A recipe is a YAML file of settings. Its first comment says what it trains, `# engines:` names the trainers that it is
written for, and the comment at its end says what was run of it.
"""

from __future__ import annotations

from pathlib import Path

from fspo.settings import hint

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The names of all recipes."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def located(path: str | Path) -> Path:
    """The file of a configuration: a path, or `recipe:NAME`."""
    kind, _, name = str(path).partition(":")
    if kind != "recipe":
        return Path(path)
    if name not in names():
        raise ValueError(f"there is no recipe {name!r}{hint(name, names())}")
    return FOLDER / f"{name}.yaml"


def summary(name: str) -> str:
    """What a recipe trains, in one line."""
    return located(f"recipe:{name}").read_text().partition("\n")[0].removeprefix("# ")


def note(name: str, key: str) -> str:
    """The text after `# KEY:` in a recipe; empty if there is none."""
    lines = located(f"recipe:{name}").read_text().splitlines()
    return next((line.removeprefix(f"# {key}:").strip() for line in lines if line.startswith(f"# {key}:")), "")
