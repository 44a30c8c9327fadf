"""What this machine has and what each engine lacks, for `fspo doctor`."""

from __future__ import annotations

import importlib.util
import platform
import sys
from typing import Any

from fspo import runtime
from fspo.engines.extras import extras, lacking, missing, version
from fspo.tasks.sandbox.launch import working_backend

PACKAGES = (
    "fspo", "torch", "transformers", "tokenizers", "peft", "accelerate", "datasets", "numpy", "scipy", "polars",
    "pyarrow", "trl", "verl", "ray", "vllm", "tensordict", "flash-attn", "reasoning-gym", "math-verify",
)  # fmt: skip
ENGINES = ("local", "trl", "verl", "vllm")
TOOLS = ("dev", "test", "peers", "browser")  # extras for work on the package itself


def examine() -> dict[str, Any]:
    """All facts as plain values; `engines` has the list of what each engine lacks."""
    found: dict[str, Any] = {
        "python": platform.python_version(), "executable": sys.executable, "platform": platform.platform(),
        "versions": {name: version(name) for name in PACKAGES},
        "extras": {name: missing(name) for name in extras() if name not in TOOLS},
        "devices": devices(), "cores": runtime.usable_cores(), "sandbox": sandbox(), "plugin": plugin(),
    }  # fmt: skip
    found["engines"] = {name: lacks(name, found) for name in ENGINES}
    return found


def lacks(engine: str, facts: dict[str, Any]) -> list[str]:
    """Why an engine could not run here; `vllm` is vLLM as the sampler of any engine."""
    if engine == "verl":
        from fspo.engines.verl.needs import problems

        known = facts["plugin"]
        return [*problems(), *(sentence for sentence in known.values() if sentence)]
    wanted = {"local": ("train",), "trl": ("trl",), "vllm": ("vllm",)}[engine]
    return [sentence] if (sentence := lacking(*wanted)) else []


def devices() -> list[str]:
    """What torch can compute on."""
    if importlib.util.find_spec("torch") is None:
        return []
    import torch

    found = [f"cpu ({torch.get_num_threads()} threads by default)"]
    for i in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(i)
        found.append(f"cuda:{i} {facts.name}, {facts.total_memory / 2**30:.0f} GiB")
    return found + (["mps"] if torch.backends.mps.is_available() else [])


def plugin() -> dict[str, str]:
    """verl's view of this package, without any variable that names it; empty where verl is not installed."""
    if version("verl") is None:
        return {}
    from fspo.engines.verl.probe import probe

    asked = probe()
    return {"verl": asked["verl"], "plugin": asked["plugin"], "trl": asked["trl"]}


def sandbox() -> dict[str, str | None]:
    """The back end that isolates programs of `code:` tasks, or why there is none."""
    try:
        return {"backend": working_backend(), "problem": None}
    except RuntimeError as error:
        return {"backend": None, "problem": str(error)}
