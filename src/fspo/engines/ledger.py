"""The updates of somebody else's trainer: what each needs to know about the whole batch, and what it did.

A foreign trainer calls the loss once a micro-batch and rank, and the drift and scale of the batch are not known yet
then. They come from the update at the same place in the rollout before: z widens with every update on a rollout, in
the same way each time. `close` ends an update: all ranks see the rows of all of them, so that the next estimate, the
state of an adaptive objective and the metrics are the same on every rank, however the batch was split.
"""

from __future__ import annotations

import json
import math
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from fspo.local.measure import clipping
from fspo.local.records import SCHEMA, Records
from fspo.objectives import Objective, Output, Totals
from fspo.objectives.base import ratio_statistics
from fspo.objectives.batch import masked
from fspo.objectives.primitives import low_variance_kl

BINS = 6
ROUNDING = 1e-5
"""A scale of (S - mu L) / sqrt(L) below this is rounding between two forwards, not a move of the policy."""


class Ledger:
    """Losses of micro-batches, closed update by update; `updates` of them make a rollout.

    `copies` is the number of neighbouring ranks that share their rows, as in sequence parallelism: rows count once.
    """

    def __init__(self, objective: Objective, updates: int, folder: str | Path | None = None, copies: int = 1) -> None:
        if updates < 1:
            raise ValueError(f"updates = {updates} must be at least 1: the optimiser steps on one rollout")
        self.objective, self.updates, self.copies = objective, updates, copies
        self.step, self.update = 1, 0  # the rollout, from 1, and the optimiser step on it, from 0
        self._known: dict[int, Totals] = {}  # of the last update at each place
        self._parts: list[dict[str, list[Any]]] = []  # of this rank, since the last close
        self._rows: dict[str, list[Any]] = {}  # of all ranks, since the rollout began
        self._metrics: dict[str, Any] = {}
        self._moved: set[int] = set()  # updates of this rollout at which the policy had moved
        self._old_rows = True  # an earlier run may have written what this one is going to write
        self._records = Records(Path(folder), keep_rows=True) if folder is not None and _rank() == 0 else None

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
        """The objective on a micro-batch of an update that has so many sequences and tokens over all ranks; the parts
        add up to the update's loss. `columns` are further fields of the records, one value a row. Rows without a
        trained token take no part, and a loss that nobody can differentiate is part of no update."""
        kept = mask.any(-1)
        if not kept.all():
            logprobs, old_logprobs, advantages, mask = (x[kept] for x in (logprobs, old_logprobs, advantages, mask))
            options = {key: value[kept] if isinstance(value, Tensor) else value for key, value in options.items()}
            columns = {key: list(compress(values, kept.tolist())) for key, values in (columns or {}).items()}
        if len(mask):
            totals = self.totals(sequences, tokens)
            out = self.objective(
                logprobs, old_logprobs, advantages, mask, totals=totals, staleness=self.update, **options
            )  # fmt: skip
        else:  # nothing to learn from, and still a loss that every rank can differentiate
            nothing = logprobs.detach().sum(-1)
            out = Output(logprobs.sum(), nothing, nothing, nothing, {})
        if not torch.is_grad_enabled():
            return out
        with torch.no_grad():
            kl = masked(low_variance_kl(logprobs.detach() - old_logprobs), mask).sum(-1)
            scalar = advantages if advantages.dim() == 1 else masked(advantages, mask).sum(-1) / out.lengths
        part = {"length": out.lengths, "log_ratio": out.log_ratio, "accepted": out.accepted}
        part |= {"advantage": scalar, "kl": kl}
        known = {name: values.detach().double().cpu().tolist() for name, values in part.items()}
        self._parts.append({**known, "metrics": [out.metrics] * len(known["length"]), **(columns or {})})
        return out

    def totals(self, sequences: float, tokens: float) -> Totals:
        """The counts of this update, with the drift and scale of the one at its place in the rollout before.

        In the first rollout there is none: the update before takes its place, and before anything has moved nothing
        is known, so that the drift is 0 and a calibrated band is open.
        """
        known = self._known.get(self.update, self._known.get(self.update - 1))
        if known is None:
            return Totals(sequences, tokens, 0.0, math.inf, 0.0)
        mu = known.drift
        square = sequences * known.scale(mu) ** 2 + mu * mu * tokens
        return Totals(sequences, tokens, mu * tokens, square, -known.drift_low_variance * tokens)

    def close(self, **extra: Any) -> dict[str, Any]:
        """End the update on every rank at once: learn from all its rows, record them, and return its metrics.

        `extra` are further metrics for the records of the rollout.
        """
        columns = _gathered(self._parts, self.copies)
        self._parts = []
        metrics = self._learn(columns) if columns["length"] else {}
        if self._records is not None:
            self._keep(columns, metrics, extra)
        self.update += 1
        if self.update == self.updates:
            self.flush()
            self._rows, self._metrics, self._moved = {}, {}, set()
            self.step, self.update = self.step + 1, 0
        return metrics

    def flush(self) -> None:
        """Write what there is of a rollout, for a trainer that stops before its updates are over."""
        if self._records is not None and self._rows.get("step"):
            self._write(self._records)

    def _learn(self, columns: dict[str, list[Any]]) -> dict[str, Any]:
        """What the rows of an update say about its place in the rollout, and about clipping."""
        S, L, accepted = (np.array(columns[name], dtype=np.float64) for name in ("log_ratio", "length", "accepted"))
        sums = Totals(len(S), math.fsum(L), math.fsum(S), math.fsum(S * S / L), math.fsum(columns["kl"]))
        moved = sums.scale(0.0) > ROUNDING
        if moved:  # an update at which nothing had moved says nothing about the drift and scale of the next
            self._known[self.update] = sums
            self._moved.add(self.update)
        s, n = torch.from_numpy(S), torch.from_numpy(L)
        self.objective.observe(s, n, self.update)
        said = columns["metrics"]
        metrics: dict[str, Any] = {key: _mean([row[key] for row in said]) for key in said[0]}
        metrics |= {"on_policy": not moved, "kl": -sums.drift_low_variance}
        metrics |= ratio_statistics(s, n)
        metrics.pop("clip_rate", None)
        pulls = np.array(columns["advantage"]) != 0  # the others have no gradient that clipping could remove
        if pulls.any():
            metrics["clip_rate"] = float(1 - accepted[pulls].mean())
        if moved and pulls.any():
            metrics |= clipping(S[pulls], L[pulls], accepted[pulls], BINS)
        return metrics

    def _keep(self, columns: dict[str, list[Any]], metrics: dict[str, Any], extra: dict[str, Any]) -> None:
        """Hold the rows of the update until the rollout ends."""
        count = len(columns["length"])
        place = {"step": self.step, "update": self.update, "staleness": self.update}
        known = columns | {name: [value] * count for name, value in place.items()}
        for name in SCHEMA.names:
            self._rows.setdefault(name, []).extend(known.get(name, [None] * count))
        self._metrics = {key: value for key, value in self._metrics.items() if key != "on_policy"} | metrics | extra

    def _write(self, records: Records) -> None:
        """The rows of the rollout and its metrics."""
        if self._old_rows:
            records.cut(self.step - 1)
            self._old_rows = False
        names = ("log_ratio", "length", "accepted", "advantage", "update")
        rows = {name: np.array(self._rows[name]) for name in names}
        moved = np.isin(rows["update"], sorted(self._moved))
        pulls = moved & (rows["advantage"] != 0)
        done = len(np.unique(rows["update"]))
        summary = self._metrics | {"step": self.step, "updates": done, "on_policy": not moved.any()}
        if pulls.any():
            S, L, accepted = (rows[name][pulls] for name in ("log_ratio", "length", "accepted"))
            summary |= clipping(S, L, accepted, BINS)
        records.rows(self.step, self._rows)
        records.append("metrics", summary)

    def state_dict(self) -> dict[str, Any]:
        """What has been learnt, as plain numbers that JSON can hold; taken between two rollouts."""
        known = {str(update): totals.vector() for update, totals in self._known.items()}
        return {"step": self.step, "known": known, "objective": self.objective.state_dict()}

    def describe(self, config: dict[str, Any]) -> None:
        """Write config.yaml next to the records, where nobody has: JSON is YAML."""
        if self._records is not None and not (path := self._records.folder / "config.yaml").exists():
            path.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")

    def keep_state(self) -> None:
        """Write the state next to the records, for a trainer whose checkpoints have no room for it."""
        if self._records is not None:
            self._records.append("ledger", self.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.update = state["step"], 0
        self._known = {int(update): Totals.from_vector(vector) for update, vector in state["known"].items()}
        self.objective.load_state_dict(state["objective"])
        self._parts, self._rows, self._metrics, self._moved, self._old_rows = [], {}, {}, set(), True


def _rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def _mean(values: list[float]) -> float:
    """What is the same in all parts, such as the band, comes back as it was, to the bit."""
    return values[0] if len(set(values)) == 1 else float(np.mean(values))


def _gathered(parts: list[dict[str, list[Any]]], copies: int) -> dict[str, list[Any]]:
    """The rows of all micro-batches of all ranks, in the same order on each."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        everybody: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everybody, parts)
        parts = [part for rank in everybody[::copies] for part in rank]
    if not parts:
        raise RuntimeError("an update was closed before any loss was taken in it")
    return {name: [value for part in parts for value in part[name]] for name in parts[0]}
