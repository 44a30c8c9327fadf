"""What verl needs before it is started: packages, a platform, devices, and its plug-in."""

from __future__ import annotations

import importlib.util
import os
import sys

from fspo.config import TrainConfig
from fspo.engines.extras import lacking
from fspo.engines.verl.probe import environment, probe
from fspo.settings import flat


def require_packages() -> None:
    """Refuse where packages are missing; needs none of them itself."""
    if absent := lacking("verl", "vllm"):
        raise ValueError(_sentence([absent]))


def require(config: TrainConfig) -> None:
    """Refuse a run that verl could not start, in one sentence."""
    elsewhere = "RAY_ADDRESS" in os.environ or any("ray_init.address" in key for key in flat(config.engines.verl))
    found = problems(elsewhere=elsewhere)
    if not found:
        asked = probe(os.environ | environment("."))
        found = [sentence for sentence in (asked["verl"], asked["plugin"], asked["trl"]) if sentence]
    if found:
        raise ValueError(_sentence(found))


def _sentence(found: list[str]) -> str:
    return f"--engine verl cannot start: {'; '.join(found)}. --dry-run writes the run for another machine"


def problems(*, elsewhere: bool = False) -> list[str]:
    """What can be seen without importing verl; `elsewhere` is whether a Ray cluster that is already up will train."""
    found = [lacking("verl", "vllm")]
    if sys.platform != "linux":
        found.append(f"verl, Ray and vLLM need Linux, and this is {sys.platform}")
    elif not elsewhere and "VERL_PLATFORM" not in os.environ and _shows_no_device():
        found.append("verl trains on CUDA or Ascend devices, and this machine shows none")
    return [sentence for sentence in found if sentence]


def _shows_no_device() -> bool:
    """Without torch nothing is known about devices."""
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("torch_npu") is not None:
        return False
    import torch

    return not torch.cuda.is_available()
