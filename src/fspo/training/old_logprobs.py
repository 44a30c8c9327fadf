"""Log-probs of a rollout's answers under the policy that sampled them, pi_old, in the ratio pi / pi_old.

They come from the forward that trains, not from the sampler: a KV cache or another engine differs by rounding of about
1e-3, which is more than the whole range of a length-normalised objective.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fspo.model.completions import Completions, split
from fspo.model.forward import LogProbs, logprobs
from fspo.model.loading import Policy
from fspo.training.team import Team


@torch.no_grad()
def policy_logprobs(policy: Policy, batch: Completions, temperature: float, token_budget: int) -> Tensor:
    """(N, T) log-probs of a batch under a policy, micro-batch by micro-batch; NaN where there is no token."""
    result: Tensor | None = None
    for part, places in split(batch, token_budget):
        out = logprobs(policy, part, temperature)
        if result is None:
            result = out.logprobs.new_full((len(batch), max(batch.lengths)), math.nan)
        values = torch.where(out.mask, out.logprobs, math.nan)
        result[places.to(result.device), : values.shape[1]] = values
    assert result is not None
    return result


def shared_logprobs(team: Team, policy: Policy, batch: Completions, temperature: float, token_budget: int) -> Tensor:
    """`policy_logprobs`, each process computing its share of the batch."""
    own = team.share(batch.lengths)
    mine = policy_logprobs(policy, batch.select(own), temperature, token_budget) if own else None
    if team.size == 1 and mine is not None:
        return mine
    parts = [part for part in team.gather(None if mine is None else mine.cpu()) if part is not None]
    width = max(batch.lengths)
    padded = [torch.nn.functional.pad(part, (0, width - part.shape[1]), value=math.nan) for part in parts]
    return torch.cat(padded).to(policy.device)


class OldLogProbs:
    """(N, T) log-probs, row by row either known or not yet. The only owner of the tensor: nothing else changes it."""

    def __init__(self, values: Tensor) -> None:
        self._values = values  # NaN where there is no token, and in all of a row that is not known yet

    @classmethod
    def unknown(cls, batch: Completions, device: torch.device) -> OldLogProbs:
        return cls(torch.full((len(batch), max(batch.lengths)), math.nan, device=device))

    @classmethod
    def from_json(cls, values: list[list[float]], device: torch.device) -> OldLogProbs:
        return cls(torch.tensor(values, dtype=torch.float32, device=device))

    def to_json(self) -> list[list[float]]:
        """Plain lists; a float32 survives the way through JSON unchanged."""
        return self._values.tolist()

    def fill(self, rows: list[int], found: Tensor) -> None:
        """Make these rows known."""
        self._values = self._values.to(found.dtype)
        self._values[rows, : found.shape[1]] = found.to(self._values.device)

    def any_known(self, rows: list[int]) -> bool:
        return not bool(torch.isnan(self._values[rows, 0]).all())

    def at(self, rows: list[int], width: int | None = None) -> Tensor:
        """(len(rows), width), or as wide as the longest answer; NaN where there is no token."""
        return self._values[rows, :width]

    def take(self, rows: list[int], out: LogProbs) -> Tensor:
        """Old log-probs of these rows. A row that is not known yet is on-policy: it gets those just computed."""
        index = torch.tensor(rows, device=self._values.device)
        width = out.mask.shape[1]
        if self._values.dtype != out.logprobs.dtype:
            self._values = self._values.to(out.logprobs.dtype)
        old = self._values[index, :width]
        if torch.isnan(old[:, 0]).any():
            old = torch.where(torch.isnan(old[:, :1]), out.logprobs.detach(), old)
            self._values[index, :width] = torch.where(out.mask, old, math.nan)
        return old

    def entropy(self) -> float:
        """Mean of -log pi_old over the sampled tokens that are known: an unbiased estimate, at no cost."""
        return float(-self._values.nanmean())


def logprob_table(rows: list[list[float]], width: int, like: Tensor) -> Tensor:
    """(N, width) log-probs that a sampler gave, NaN where there is no token."""
    table = like.new_full((len(rows), width), math.nan)
    for i, row in enumerate(rows):
        table[i, : len(row)] = torch.tensor(row)
    return table
