"""A checkpoint engine of verl without accelerators, for the tests: weights go from trainer to sampler through a file.

verl's own (nccl, nixl, mooncake) need one; `rollout.checkpoint_engine.custom_backend_module` imports this one.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry


@CheckpointEngineRegistry.register("file")
class FileCheckpointEngine(CheckpointEngine):
    """The first rank of the trainer writes the file, and all samplers read it."""

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self.is_master = is_master
        self.path = Path(tempfile.gettempdir()) / f"weights-{os.getpid()}.pt"

    def prepare(self) -> Any:
        self.path.unlink(missing_ok=True)
        return str(self.path)

    @classmethod
    def build_topology(cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[Any]) -> Any:
        return {"path": metadata[:1] * actor_wg_world_size}, {"path": metadata[:1] * rollout_world_size}

    def init_process_group(self, **kwargs: Any) -> None:
        self.path = Path(kwargs["path"])

    def finalize(self) -> None:
        pass

    async def send_weights(self, weights: Any, global_steps: int | None = None) -> None:
        named = {name: weight.detach().cpu().clone() for name, weight in weights}  # all ranks gather the shards
        if self.is_master:
            torch.save(named, self.path.with_suffix(".writing"))
            os.replace(self.path.with_suffix(".writing"), self.path)

    async def receive_weights(self, global_steps: int | None = None) -> Any:
        while not self.path.is_file():
            await asyncio.sleep(0.02)
        for name, weight in torch.load(self.path, weights_only=True).items():
            yield name, weight
