"""The updates (optimiser steps) of another trainer: what each needs to know about its whole batch.

Such a trainer calls the loss once per micro-batch and rank, before the drift of the whole batch is known. So the drift
is that of the update with the same index in the previous rollout: z = S / sqrt(L) widens with every update on a
rollout, in the same way each time. `end_update` ends an update: every rank gets the rows of all ranks, so that the next
estimate, the state of an adaptive objective and the metrics are the same on every rank, however the batch was split.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fspo.objectives import Batch, Objective, Output, Totals
from fspo.runs.recorder import OF_A_RESPONSE, Recorder, response_rows
from fspo.runs.schema import UpdateState


class UpdateTracker(Recorder):
    """The recorder of a trainer that trains with an objective; `updates` of its optimiser steps make a rollout."""

    def __init__(self, objective: Objective, updates: int, folder: str | Path | None = None, copies: int = 1) -> None:
        self.objective = objective
        self._sums: dict[int, Totals] = {}  # of the last off-policy update of each index in a rollout
        super().__init__(folder, updates=updates, copies=copies)

    def loss(
        self,
        logprobs: Tensor,
        old_logprobs: Tensor,
        advantages: Tensor,
        mask: Tensor,
        *,
        sequences: float,
        tokens: float,
        columns: dict[str, list[Any]] | None = None,
        record: bool = True,
        **options: Any,
    ) -> Output:
        """The objective on a micro-batch of an update that has this many sequences and tokens over all ranks.

        The losses of the parts add up to the loss of the update. `columns` are further columns of the rows, one value
        per response. Responses without a trained token are left out, and calls under `no_grad` or without `record` are
        not recorded.
        """
        kept = mask.any(-1)
        if not kept.all():
            logprobs, old_logprobs, advantages, mask = (x[kept] for x in (logprobs, old_logprobs, advantages, mask))
            options = {key: value[kept] if isinstance(value, Tensor) else value for key, value in options.items()}
            columns = {key: list(compress(values, kept.tolist())) for key, values in (columns or {}).items()}
        if len(mask):
            totals = self.totals(sequences, tokens)
            out = self.objective(
                logprobs, old_logprobs, advantages, mask, totals=totals, staleness=self.update, **options
            )
        else:  # no rows on this rank: a loss of zero that still supports backward
            empty = logprobs.detach().sum(-1)
            out = Output(logprobs.sum(), empty, empty, empty, {})
        if record and torch.is_grad_enabled():
            rows: dict[str, list[Any]] = {name: [] for name in (*OF_A_RESPONSE, *(columns or {}))}
            if len(mask):
                batch = Batch.check(logprobs.detach(), old_logprobs, advantages, mask)
                sampler = options.get("sampler_logprobs")
                rows = response_rows(batch, out.accepted, sampler, self.objective, columns)
            self._parts.append(rows | {"metrics": [out.metrics] * len(mask)})
        return out

    def totals(self, sequences: float, tokens: float) -> Totals:
        """The counts of this update, with the drift of the update of the same index in the previous rollout.

        In the first rollout, that of the previous update. Before any off-policy update the drift is 0.
        """
        known = self._sums.get(self.update, self._sums.get(self.update - 1))
        if known is None:
            return Totals(sequences, tokens, 0.0)
        return Totals(sequences, tokens, known.drift * tokens)

    def _learn(self, columns: dict[str, list[Any]], known: Mapping[str, float] | None = None) -> dict[str, Any]:
        """Update the estimates and the objective's state from the rows of an update; returns its metrics."""
        reported = columns["metrics"]  # by the objective, for the micro-batch of each row
        means = {key: _mean([row[key] for row in reported]) for key in reported[0] if key != "clip_rate"}
        metrics = super()._learn(columns, means)
        done = self.updates[-1]
        S, L = done.log_ratio, done.lengths
        self.objective.observe(torch.from_numpy(S), torch.from_numpy(L), torch.from_numpy(done.advantages), self.update)
        if done.off_policy:
            self._sums[self.update] = Totals(len(S), math.fsum(L), math.fsum(S))
        return metrics

    def state(self) -> UpdateState:
        """What has been learnt, after the last complete rollout."""
        known = {
            str(update): [None if math.isnan(value) else value for value in sums.vector()]
            for update, sums in self._sums.items()
        }
        return UpdateState(step=self.step - 1, known=known, objective=self.objective.state_dict())

    def restore(self, state: UpdateState) -> None:
        """Go on after the rollout of this state; what the folder holds of later ones is written again."""
        self._sums = {
            int(update): Totals.from_vector(math.nan if value is None else value for value in vector)
            for update, vector in state.known.items()
        }
        self.objective.load_state_dict(state.objective)
        self._begin(state.step)


def _mean(values: list[float]) -> float:
    """The mean; a value that is the same in all parts, such as the band, is returned without rounding."""
    return values[0] if len(set(values)) == 1 else float(np.mean(values))
