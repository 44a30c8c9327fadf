"""The tables at the end of the recipes: what `fspo plan` says, computed again.

    python -m helpers.recipe_tables

writes them anew.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from typer.testing import CliRunner

from fspo import recipes
from fspo.cli.main import app

MARK = "# --- what it needs ---"
COMMAND = "# $ fspo "
LAST = "# Really run: "


def table(command: str) -> list[str]:
    """What the command prints, without its first line and what it assumes."""
    done = CliRunner().invoke(app, shlex.split(command))
    assert done.exit_code in (0, 1), done.output
    lines = done.output.splitlines()[1:]
    return lines[: next(i for i, line in enumerate(lines) if line.startswith("Assumed"))]


def expected(path: Path) -> str:
    """The whole recipe, with its tables computed again."""
    head, _, tail = path.read_text().partition(MARK)
    lines = [head.rstrip("\n"), MARK]
    for line in tail.splitlines():
        if line.startswith(COMMAND):
            lines += [line, *(f"# {row}" for row in table(line.removeprefix(COMMAND)))]
    return "\n".join(lines) + "\n" + tail[tail.index(LAST) :]


if __name__ == "__main__":
    for name in recipes.names():
        found = recipes.FOLDER / f"{name}.yaml"
        found.write_text(expected(found))
