"""`torch`, imported when it is first used: what an objective clips is known, and an audit runs, without it.

    from fspo.tensors import Tensor, no_grad, torch

Modules that only describe a computation (objectives, advantages) take `torch` from here. Those that cannot do anything
without it (model, rollout, training) import it as usual.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:

    class _Torch:
        """Looks up every name in the module itself, once."""

        def __getattr__(self, name: str) -> Any:
            value = getattr(importlib.import_module("torch"), name)
            setattr(self, name, value)
            return value

    torch = _Torch()
    Tensor = Any  # for annotations

__all__ = ["Tensor", "no_grad", "torch"]

P = ParamSpec("P")
R = TypeVar("R")


def no_grad(function: Callable[P, R]) -> Callable[P, R]:
    """The function, called under `torch.no_grad()`, which as a decorator would import torch with the module."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.no_grad():
            return function(*args, **kwargs)

    return call
