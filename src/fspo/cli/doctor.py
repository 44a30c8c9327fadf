"""The command `doctor`: what this machine has, and what each engine lacks."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from fspo.cli.terminal import Terminal
from fspo.text import visible

console = Terminal()


def doctor(
    engines: Annotated[
        list[str] | None, typer.Argument(help="local, trl, verl, vllm: exit code 1 if one of these lacks something")
    ] = None,
    json_out: Annotated[
        str | None, typer.Option("--json", metavar="[PATH]", help="write all facts here; alone: to standard output")
    ] = None,
) -> None:
    """Versions, devices, extras, sandbox and verl's plug-in, and what each engine lacks on this machine.

    [dim]fspo doctor[/]
    [dim]fspo doctor --json[/]
    """
    from fspo.engines.checkup import ENGINES, examine
    from fspo.files import json_text, replace_file
    from fspo.settings import hint

    for name in engines or []:
        if name not in ENGINES:
            raise ValueError(f"there is no engine {name!r}{hint(name, ENGINES)}")
    facts = examine()
    if json_out == "-":
        print(json_text(facts, indent=1))
    else:
        _show(facts)
    if json_out not in (None, "-"):
        replace_file(json_out, json_text(facts, indent=1))
    if any(facts["engines"][name] for name in engines or []):
        raise typer.Exit(1)


def _show(facts: dict[str, Any]) -> None:
    sandbox, plugin = facts["sandbox"], facts["plugin"]
    problems = [sentence for sentence in plugin.values() if sentence]
    versions = ", ".join(f"{name} {found}" for name, found in facts["versions"].items() if found)
    rows = {
        "python": f"{facts['python']}, {facts['platform']}", "installed": versions,
        "devices": ", ".join(facts["devices"]) or "torch is not installed", "cores": str(facts["cores"]),
        "sandbox": sandbox["backend"] or sandbox["problem"],
        "verl's plug-in": "; ".join(problems) or ("found and imported" if plugin else "verl is not installed"),
    }  # fmt: skip
    rows |= {
        f"extra {name}": f"lacks {', '.join(absent)}" if absent else "complete"
        for name, absent in facts["extras"].items()
    }
    rows |= {f"engine {name}": "; ".join(lack) or "ready" for name, lack in facts["engines"].items()}
    table = Table(show_header=False)
    for name, text in rows.items():
        table.add_row(name, Text(visible(text)))
    console.print(table)
