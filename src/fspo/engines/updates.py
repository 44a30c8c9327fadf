"""The updates (optimiser steps) of another trainer: what each needs to know about its whole batch, and what it did.

Such a trainer calls the loss once per micro-batch and rank, before the drift and scale of the whole batch are known.
They are taken from the update at the same place in the previous rollout: z = S / sqrt(L) widens with every update on a
rollout, in the same way each time. `close` ends an update: every rank gets the rows of all ranks, so that the next
estimate, the state of an adaptive objective and the metrics are the same on every rank, however the batch was split.
"""

from __future__ import annotations

import math
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from fspo import ratios
from fspo.config import LogConfig
from fspo.objectives import Objective, Output, Totals
from fspo.objectives.batch import masked
from fspo.objectives.primitives import low_variance_kl
from fspo.runs import Metrics, RunWriter, UpdateState
from fspo.runs.rows import COLUMNS
from fspo.training.step_metrics import NEARLY_ALL, clipped_away, clipping, update_statistics

BINS = LogConfig().bins


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
        self.writer = RunWriter(folder) if folder is not None and _rank() == 0 else None
        self.written: Metrics | None = None  # the last line of metrics
        self._known: dict[int, Totals] = {}  # sums of the last off-policy update at each place in a rollout
        self._parts: list[dict[str, list[Any]]] = []  # rows of this rank, since the last `close`
        self._begin_rollout()
        self._must_cut = True  # the folder may hold lines of an earlier run from this step on

    def _begin_rollout(self) -> None:
        self._rows: dict[str, list[Any]] = {name: [] for name in COLUMNS}  # rows of all ranks
        self._metrics: list[dict[str, Any]] = []  # of each update
        self._extra: dict[str, Any] = {}

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
        **options: Any,
    ) -> Output:
        """The objective on a micro-batch of an update that has this many sequences and tokens over all ranks.

        The losses of the parts add up to the loss of the update. `columns` are further columns of the rows, one value
        per response. Responses without a trained token are left out, and calls under `no_grad` are not recorded.
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
        if torch.is_grad_enabled():
            self._parts.append(_rows(out, logprobs, old_logprobs, advantages, mask) | (columns or {}))
        return out

    def totals(self, sequences: float, tokens: float) -> Totals:
        """The counts of this update, with the drift and scale of the update at its place in the previous rollout.

        In the first rollout, those of the previous update. Before any off-policy update nothing is known: the drift is
        0 and a calibrated band is open.
        """
        known = self._known.get(self.update, self._known.get(self.update - 1))
        if known is None:
            return Totals(sequences, tokens, 0.0)
        return Totals(sequences, tokens, known.drift * tokens)

    def close(self, **extra: Any) -> dict[str, Any]:
        """End the update on every rank at once: learn from its rows, record them, and return its metrics.

        `extra` are further metrics of the rollout.
        """
        columns = _gathered(self._parts, self.copies)
        self._parts = []
        metrics: dict[str, Any] = {}
        if columns["length"]:
            metrics = self._learn(columns)
            self._record(columns, metrics)
        self._extra |= extra
        self.update += 1
        if self.update == self.updates:
            self.flush()
            self._begin_rollout()
            self.step, self.update = self.step + 1, 0
        return metrics

    def flush(self) -> None:
        """Write the rows and metrics of the rollout so far; for a trainer that stops in the middle of one."""
        if self.writer is None or not self._metrics:
            return
        if self._must_cut:
            self.writer.cut(self.step - 1)
            self._must_cut = False
        self.writer.rows(self.step, self._rows)
        self.written = Metrics(**self._summary())
        self.writer.append(self.written)

    def _learn(self, columns: dict[str, list[Any]]) -> dict[str, Any]:
        """Update the estimates and the objective's state from the rows of an update; returns its metrics."""
        names = ("log_ratio", "length", "accepted", "advantage")
        S, L, accepted, A = (np.array(columns[name], dtype=np.float64) for name in names)
        sums = Totals(len(S), math.fsum(L), math.fsum(S))
        reported = columns["metrics"]  # by the objective, for the micro-batch of each row
        metrics: dict[str, Any] = {key: _mean([row[key] for row in reported]) for key in reported[0]}
        metrics.pop("clip_rate", None)
        metrics |= update_statistics(S, L, accepted, A) | {"kl": math.fsum(columns["kl"]) / sums.tokens}
        off_policy = metrics.pop("off_policy")
        metrics["on_policy"] = not off_policy
        with_gradient = ratios.has_gradient(A)
        if off_policy:
            self._known[self.update] = sums
            if with_gradient.any():
                metrics |= clipping(S[with_gradient], L[with_gradient], accepted[with_gradient], BINS)
        self.objective.observe(torch.from_numpy(S), torch.from_numpy(L), self.update)
        return metrics

    def _record(self, columns: dict[str, list[Any]], metrics: dict[str, Any]) -> None:
        """Keep the rows and metrics of an update until the rollout ends."""
        if self.writer is None:
            return
        count = len(columns["length"])
        place = {"step": self.step, "update": self.update, "staleness": self.update}
        place["off_policy"] = not metrics["on_policy"]
        known = columns | {name: [value] * count for name, value in place.items()}
        for name, values in self._rows.items():
            values.extend(known.get(name, [None] * count))
        self._metrics.append(metrics)

    def _summary(self) -> dict[str, Any]:
        """The metrics of the rollout, see `fspo.runs.Metrics`: clipping over the rows of all its off-policy updates."""
        moved = [metrics for metrics in self._metrics if not metrics["on_policy"]]
        shown = {**(moved or self._metrics)[-1], "kl": self._metrics[-1]["kl"]}
        for name in ("clip_rate", *(() if moved else ("mu", "sigma", "ess"))):
            shown.pop(name, None)
        if moved:
            shown["ess"] = min(metrics["ess"] for metrics in moved)
        names = ("log_ratio", "length", "accepted", "advantage", "off_policy")
        S, L, accepted, A, off_policy = (np.array(self._rows[name]) for name in names)
        used = off_policy & ratios.has_gradient(A)
        if used.any():
            shown |= clipping(S[used], L[used], accepted[used], BINS)
        if shown.get("clip_rate", 0) > NEARLY_ALL:
            shown["warnings"] = {"clip_rate": clipped_away(shown["clip_rate"])}
        counts = {"step": self.step, "updates": len(self._metrics), "on_policy": not moved}
        return shown | self._extra | counts

    def state(self) -> UpdateState:
        """What has been learnt, after the last complete rollout."""
        known: dict[str, list[float | None]] = {str(update): [*sums.vector()] for update, sums in self._known.items()}
        return UpdateState(step=self.step - 1, known=known, objective=self.objective.state_dict())

    def restore(self, state: UpdateState) -> None:
        """Go on after the rollout of this state; what the folder holds of later ones is written again."""
        self.step, self.update = state.step + 1, 0
        self._known = {
            int(update): Totals.from_vector(math.nan if value is None else value for value in vector)
            for update, vector in state.known.items()
        }
        self.objective.load_state_dict(state.objective)
        self._parts = []
        self._begin_rollout()
        self._must_cut = True


def loggable(metrics: dict[str, Any]) -> dict[str, float]:
    """The metrics of an update as plain finite numbers, for a trainer's own log; bins are numbered from 1."""
    bins = {f"clip_by_length/{k}": b.clip_rate for k, b in enumerate(metrics.get("clip_by_length", []), 1)}
    numbers = {name: float(value) for name, value in (metrics | bins).items() if isinstance(value, int | float)}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


@torch.no_grad()
def _rows(out: Output, logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> dict[str, list[Any]]:
    """One row per response of a micro-batch, by column."""
    kl = masked(low_variance_kl(logprobs - old), mask).sum(-1)
    advantage = advantages if advantages.dim() == 1 else masked(advantages, mask).sum(-1) / out.lengths
    values = {"log_ratio": out.log_ratio, "accepted": out.accepted, "advantage": advantage, "kl": kl}
    found = {name: value.detach().double().cpu().tolist() for name, value in values.items()}
    return found | {"length": out.lengths.long().cpu().tolist(), "metrics": [out.metrics] * len(mask)}


def _rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def _mean(values: list[float]) -> float:
    """The mean; a value that is the same in all parts, such as the band, is returned without rounding."""
    return values[0] if len(set(values)) == 1 else float(np.mean(values))


def _gathered(parts: list[dict[str, list[Any]]], copies: int) -> dict[str, list[Any]]:
    """The rows of all micro-batches of all ranks, in the same order on each rank."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        all_parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(all_parts, parts)
        parts = [part for rank in all_parts[::copies] for part in rank]
    if not parts:
        raise RuntimeError("close() was called before any loss of the update")
    return {name: [value for part in parts for value in part[name]] for name in parts[0]}
