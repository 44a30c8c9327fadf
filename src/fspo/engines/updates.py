"""The updates (optimiser steps) of another trainer: what each needs to know about its whole batch.

Such a trainer calls the loss once per micro-batch and rank, before the drift of the whole batch is known.
It is taken from the update at the same place in the previous rollout: z = S / sqrt(L) widens with every update on a
rollout, in the same way each time. `close` ends an update: every rank gets the rows of all ranks, so that the next
estimate, the state of an adaptive objective and the metrics are the same on every rank, however the batch was split.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fspo.objectives import Objective, Output, Totals
from fspo.runs import Metrics, UpdateState
from fspo.runs.recorder import Recorder, Update, clipping, gather, response_rows, writer_of_rank


class UpdateTracker:
    """Collects the losses of micro-batches and closes them update by update; `updates` of these make a rollout.

    `folder` is the run folder to write to, if any. `copies` is the number of neighbouring ranks that hold the same
    rows, as in sequence parallelism: their rows count once.
    """

    def __init__(self, objective: Objective, updates: int, folder: str | Path | None = None, copies: int = 1) -> None:
        if updates < 1:
            raise ValueError(f"updates = {updates} must be at least 1: the optimiser steps per rollout")
        self.objective, self.updates, self.copies = objective, updates, copies
        self.step, self.update = 1, 0  # the rollout, from 1, and the optimiser step on it, from 0
        self.writer = writer_of_rank(folder)
        self.written: Metrics | None = None  # the last line of metrics
        self._known: dict[int, Totals] = {}  # sums of the last off-policy update at each place in a rollout
        self._begin()

    def _begin(self) -> None:
        self._parts: list[dict[str, list[Any]]] = []  # rows of this rank, since the last `close`
        self._recorder = Recorder(self.writer, optional=True)
        self._extra: dict[str, Any] = {}  # further metrics of the rollout
        self._must_cut = True  # the folder may hold lines of an earlier run from this step on

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
        else:  # no gradient, but a loss that this rank can differentiate like the others
            empty = logprobs.detach().sum(-1)
            out = Output(logprobs.sum(), empty, empty, empty, {})
        if record and torch.is_grad_enabled():
            rows = response_rows(logprobs, old_logprobs, mask, advantages, out.accepted)
            self._parts.append(rows | {"metrics": [out.metrics] * len(mask)} | (columns or {}))
        return out

    def totals(self, sequences: float, tokens: float) -> Totals:
        """The counts of this update, with the drift of the update at its place in the previous rollout.

        In the first rollout, that of the previous update. Before any off-policy update the drift is 0.
        """
        known = self._known.get(self.update, self._known.get(self.update - 1))
        if known is None:
            return Totals(sequences, tokens, 0.0)
        return Totals(sequences, tokens, known.drift * tokens)

    def close(self, **extra: Any) -> dict[str, Any]:
        """End the update on every rank at once: learn from its rows, record them, and return its metrics.

        `extra` are further metrics of the rollout.
        """
        columns = gather(self._parts, self.copies)
        self._parts = []
        self._extra |= extra
        metrics = self._learn(columns) if columns["length"] else {}
        self.update += 1
        if self.update == self.updates:
            self.flush()
            self.step, self.update, self._extra = self.step + 1, 0, {}
        return metrics

    def flush(self) -> None:
        """Write the rows and metrics of the rollout so far; for a trainer that stops in the middle of one."""
        if not self._recorder.updates:
            return
        if self.writer is not None and self._must_cut:
            self.writer.cut(self.step - 1)
        self._must_cut = False
        metrics = self._recorder.close(self.step, **self._extra)
        self.written = None if self.writer is None else metrics

    def _learn(self, columns: dict[str, list[Any]]) -> dict[str, Any]:
        """Update the estimates and the objective's state from the rows of an update; returns its metrics."""
        reported = columns["metrics"]  # by the objective, for the micro-batch of each row
        means = {key: _mean([row[key] for row in reported]) for key in reported[0] if key != "clip_rate"}
        means["kl"] = math.fsum(columns["kl"]) / math.fsum(columns["length"])
        done = Update(self.update, self.update, columns, means)
        done.metrics["on_policy"] = not done.off_policy
        self._recorder.add(done)
        S, L = done.log_ratio, done.lengths
        self.objective.observe(torch.from_numpy(S), torch.from_numpy(L), self.update)
        if not done.off_policy:
            return done.metrics
        self._known[self.update] = Totals(len(S), math.fsum(L), math.fsum(S))
        return done.metrics | clipping([done])

    def state(self) -> UpdateState:
        """What has been learnt, after the last complete rollout."""
        known = {
            str(update): [None if math.isnan(value) else value for value in sums.vector()]
            for update, sums in self._known.items()
        }
        return UpdateState(step=self.step - 1, known=known, objective=self.objective.state_dict())

    def restore(self, state: UpdateState) -> None:
        """Go on after the rollout of this state; what the folder holds of later ones is written again."""
        self.step, self.update = state.step + 1, 0
        self._known = {
            int(update): Totals.from_vector(math.nan if value is None else value for value in vector)
            for update, vector in state.known.items()
        }
        self.objective.load_state_dict(state.objective)
        self._begin()


def loggable(metrics: dict[str, Any]) -> dict[str, float]:
    """The metrics of an update as plain finite numbers, for a trainer's own log; bins are numbered from 1."""
    bins = {f"clip_by_length/{k}": b.clip_rate for k, b in enumerate(metrics.get("clip_by_length", []), 1)}
    numbers = {name: float(value) for name, value in (metrics | bins).items() if isinstance(value, int | float)}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


@torch.no_grad()
def rounded_away(parameters: Iterable[torch.nn.Parameter], lr: float) -> float:
    """The share of half-precision weights that an update of size `lr`, as Adam makes it, would leave as they are.

    Estimated from some weights of each parameter; other weights count as moved.
    """
    lost = seen = 0
    for p in parameters:
        weights = p.detach().flatten()[:: max(1, p.numel() // 4096)].abs().float()
        seen += weights.numel()
        if p.dtype in (torch.bfloat16, torch.float16):
            half_a_unit = torch.finfo(p.dtype).eps / 4  # of a weight, at least, between one number and the next
            lost += int((weights * half_a_unit > lr).sum())
    return lost / max(1, seen)


def _mean(values: list[float]) -> float:
    """The mean; a value that is the same in all parts, such as the band, is returned without rounding."""
    return values[0] if len(set(values)) == 1 else float(np.mean(values))
