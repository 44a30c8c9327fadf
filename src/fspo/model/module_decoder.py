"""Decoding for any architecture: the module's own forward with transformers' cache, prompts padded left."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fspo.model.loading import Policy


class ModuleDecoder:
    """Lanes that were admitted together are one batch of the module's forward."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.batches: list[_Batch] = []
        self.token_bytes = 0

    def admit(self, prompts: list[list[int]], group: list[int]) -> Tensor:
        batch = _Batch(self.policy, prompts)
        logits = batch.start(torch.tensor(group, device=self.policy.device))
        self.batches.append(batch)
        self.token_bytes = batch.token_bytes()
        return logits.t().contiguous()

    def step(self, tokens: Tensor) -> Tensor:
        parts = tokens.split([len(batch.mask) for batch in self.batches])
        logits = [batch.step(part) for batch, part in zip(self.batches, parts, strict=True)]
        return torch.cat(logits).t().contiguous()

    def keep(self, lanes: Tensor) -> None:
        left = []
        a = 0
        for batch in self.batches:
            size = len(batch.mask)
            rows = lanes[(lanes >= a) & (lanes < a + size)] - a
            a += size
            if len(rows):
                batch.keep(rows)
                left.append(batch)
        self.batches = left

    def held(self) -> int:
        return sum(batch.mask.numel() + len(batch.mask) for batch in self.batches)


class _Batch:
    def __init__(self, policy: Policy, prompts: list[list[int]]) -> None:
        self.model, self.context, device, pad = policy.model, policy.context, policy.device, policy.pad_id
        longest = max(map(len, prompts))
        self.ids = torch.tensor([[pad] * (longest - len(p)) + p for p in prompts], device=device)
        self.mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=device)
        self.cache: Any = None

    def start(self, group: Tensor) -> Tensor:
        from transformers import DynamicCache

        self.cache = DynamicCache(config=self.model.config)
        logits = self._forward(self.ids, (self.mask.cumsum(1) - 1).clamp_min(0))
        self.keep(group)
        return logits.index_select(0, group)

    def step(self, tokens: Tensor) -> Tensor:
        self.mask = F.pad(self.mask, (0, 1), value=1)
        positions = self.mask.sum(1, keepdim=True) - 1
        if self.context is not None:  # ended answers may run on for a few steps
            positions.clamp_max_(self.context - 1)
        return self._forward(tokens.unsqueeze(1), positions)

    def keep(self, rows: Tensor) -> None:
        self.cache.batch_select_indices(rows)
        self.mask = self.mask[rows]

    def token_bytes(self) -> int:
        """Memory of the cache per row and position."""
        whole: int = sum(t.nbytes for layer in self.cache.layers for t in (layer.keys, layer.values))
        return -(-whole // self.mask.numel())

    def _forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        out = self.model(
            input_ids=ids,
            attention_mask=self.mask,
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = out.logits[:, -1]
        return logits
