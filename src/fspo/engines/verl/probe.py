"""Imports verl as its own processes do and prints, as JSON, what they would find; run it as a process of its own.

verl loads plug-ins through entry points and logs a failure at debug level only: the run then fails much later, with
an unknown policy loss. It also fails late where it patches a class of TRL that newer versions of TRL do not have.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, TypedDict

PLUGIN = "fspo.engines.verl.plugin"


class Probe(TypedDict):
    """What verl's processes find; every value is a sentence, empty where all is well."""

    verl: str  # why verl cannot be imported
    plugin: str  # why the losses of this package are not registered
    trl: str  # why TRL is in verl's way


def environment(folder: Path | str) -> dict[str, str]:
    """What verl reads from the environment: the plug-in to import in every process, and where its logs go."""
    modules = os.environ.get("VERL_USE_EXTERNAL_MODULES", "")
    return {
        "VERL_USE_EXTERNAL_MODULES": ",".join(filter(None, [modules, PLUGIN])),
        "VERL_FILE_LOGGER_PATH": f"{folder}/verl.jsonl",
        "TENSORBOARD_DIR": f"{folder}/tensorboard",
    }


def probe(variables: dict[str, str] | None = None) -> Probe:
    """Ask in a new process with these environment variables; takes as long as importing verl."""
    done = subprocess.run(
        [sys.executable, "-m", "fspo.engines.verl.probe"], capture_output=True, text=True, env=variables, timeout=600
    )
    try:
        found: Probe = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
        return Probe(verl=f"verl cannot be imported: {last}", plugin="", trl="")
    return found


def main() -> None:
    found = Probe(verl="", plugin="", trl="")
    try:
        importlib.import_module("verl")
    except Exception as error:
        found["verl"] = f"verl cannot be imported: {_said(error)}"
    else:
        found["plugin"], found["trl"] = _plugin(), _trl()
    print(json.dumps(found))


def _plugin() -> str:
    if PLUGIN in sys.modules:
        return ""
    try:
        importlib.import_module(PLUGIN)
    except Exception as error:
        return f"verl's plug-in {PLUGIN} cannot be imported: {_said(error)}"
    return (
        "verl does not load the entry point 'fspo' of the group verl.plugins: install the package, or set "
        f"VERL_USE_EXTERNAL_MODULES={PLUGIN}"
    )


def _trl() -> str:
    utilities: Any = importlib.import_module("verl.utils.import_utils")
    if not utilities.is_trl_available():
        return ""
    for module in ("trl.experimental.ppo", "trl"):
        try:
            if hasattr(importlib.import_module(module), "AutoModelForCausalLMWithValueHead"):
                return ""
        except Exception:
            continue
    return "verl's FSDP engine patches a class that the installed TRL does not have: use an environment without TRL"


def _said(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


if __name__ == "__main__":
    main()
