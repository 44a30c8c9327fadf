"""What the updates (optimiser steps) on a rollout did: rows, metrics and warnings, the same for every trainer.

recorder = fspo.Recorder("runs/mine", rule="gspo", updates=4)      any loss, see `Recorder.record`
recorder.record(logprobs, old_logprobs, advantages, mask)

recorder = Recorder(writer)        a trainer of this package, which makes its rows itself
recorder.add(Update(...))          after each optimiser step: one row per response, and its metrics
recorder.close(step=1)             after the last update of a rollout: writes the rows, the metrics and the warnings
"""

from __future__ import annotations

import atexit
import functools
import math
import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fspo import objectives, ratios
from fspo.fairness.bins import cut
from fspo.fairness.measure import report_of_bins
from fspo.objectives import Batch, Objective
from fspo.objectives.batch import NotFiniteError
from fspo.objectives.objective import NEARLY_ALL
from fspo.objectives.packing import laid_out
from fspo.objectives.primitives import low_variance_kl
from fspo.runs.folder import OWN_LOOP, RunWarning, RunWriter
from fspo.runs.rows import COLUMNS, check_column
from fspo.runs.schema import ClipBin, Cosine, Metrics, unscored_warnings
from fspo.tensors import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    Tokens = Tensor | NDArray[Any] | Sequence[Any]

BINS = 6  # of length, as `log.bins`

MEANS = ("loss", "grad_norm", "norm_clipped", "capped", "kl", "c_low", "c_high", "drift", "exponent", "pivot")
"""Metrics of a step that are means over its updates; the numbers of an objective's own are such means too."""

LAST = ("mu", "sigma", "c_low", "c_high", "drift", "exponent", "pivot")
"""Metrics of a step that are those of its last off-policy update: the means of a band would be of no update."""

FEW_SAMPLES = 0.1  # an effective sample size below this share is worth a warning
MOST_ROWS = 1 << 18  # that are kept in memory; a rollout of more is written in pieces, as several steps

OF_A_RESPONSE = ("log_ratio", "length", "advantage", "kl", "accepted", "mismatch", "kept")
"""What `response_rows` has of each response; `kept` is the share that the rule for the sampler's mismatch left alone.
`kl` and `kept` are in the metrics only."""

FURTHER = ("index", "task", "truncated", "reward", "difficulty", "attributes")
"""The columns of `fspo.runs.rows` that a loss may know; the others are computed."""


@dataclass
class Update:
    """One optimiser step: what happened to each of its responses, and its metrics.

    `columns` are those of `fspo.runs.rows`, one value per response. A response that was left out, because it has no
    gradient, has neither `log_ratio` nor `accepted`. The statistics of the others are added to `metrics`.
    """

    update: int  # index of the optimiser step in the rollout, from 0
    staleness: int  # optimiser steps since the responses were sampled
    columns: dict[str, list[Any]]
    metrics: dict[str, Any]
    skipped: bool = False  # without a finite gradient
    cosine: Cosine | None = None  # its measured direction, where `log.cosine` asks for it
    members: list[int] = field(default_factory=list)  # indices of the responses in their rollout

    def __post_init__(self) -> None:
        self.computed = [k for k, S in enumerate(self.columns["log_ratio"]) if S is not None]
        names = ("log_ratio", "length", "accepted", "advantage")
        values = ([self.columns[name][k] for k in self.computed] for name in names)
        self.log_ratio, self.lengths, self.accepted, self.advantages = (np.array(v, dtype=np.float64) for v in values)
        self.off_policy = ratios.off_policy(self.log_ratio, self.lengths)
        self.has_gradient = ratios.has_gradient(self.advantages)
        if self.computed:
            mu = ratios.drift(self.log_ratio, self.lengths)
            self.metrics |= {"mu": mu, "sigma": ratios.scale(self.log_ratio, self.lengths, mu)}
            self.metrics["ess"] = ratios.effective_share(self.log_ratio)
        if self.clips:
            self.metrics["clip_rate"] = float(1 - self.accepted[self.has_gradient].mean())

    @property
    def clips(self) -> bool:
        """Whether it has gradients and their acceptance is known."""
        return bool(self.has_gradient.any()) and not np.isnan(self.accepted).any()


class Recorder:
    """Writes a run folder from any training loop, for `fspo watch`, `fspo report` and `fspo audit`.

    `folder` is the run folder; records of an earlier run after the step `start` are replaced. `rule` is the objective,
    or its name, whose range the loss clips with: it says what was clipped where the loss does not. `updates` is the
    number of optimiser steps per rollout, and `parts` the number of micro-batches per optimiser step.

    Recording neither changes nor stops the training. A step that cannot be written (a full disk) is counted in `lost`
    and warned about once; with `optional=False` it raises. Records of forked processes are dropped. Under
    `torch.distributed` the rows of all ranks are gathered, every rank must make the same calls, and the first one
    writes; `copies` is the number of neighbouring ranks that hold the same rows, as in sequence parallelism.

    >>> import torch, fspo
    >>> recorder = fspo.Recorder("runs/mine", rule="gspo", updates=2)
    >>> old, mask = -torch.rand(4, 9), torch.ones(4, 9, dtype=torch.bool)
    >>> for logprobs in (old, old + 0.01):  # two optimiser steps on the same answers
    ...     metrics = recorder.record(logprobs, old, torch.tensor([1.0, 1.0, -1.0, -1.0]), mask)
    >>> metrics["clip_rate"]  # where A > 0, the ratio of 1.01 is above GSPO's range
    0.5
    """

    def __init__(
        self,
        folder: str | Path | RunWriter | None = None,
        bins: int = BINS,
        *,
        rule: str | Objective | None = None,
        updates: int = 1,
        parts: int = 1,
        start: int = 0,
        copies: int = 1,
        optional: bool = True,
    ) -> None:
        if updates < 1 or parts < 1:
            raise ValueError(f"updates = {updates} and parts = {parts} must be at least 1: the optimiser steps per "
                             "rollout, and the micro-batches per optimiser step")  # fmt: skip
        self.rule = objectives.get(rule) if isinstance(rule, str) else rule
        if self.rule is not None and self.rule.learns:
            raise ValueError(f"{self.rule.name} learns its band, so a rule does not say what it clips: give accepted")
        self._folder = folder if folder is None or isinstance(folder, RunWriter) else Path(folder).absolute()
        self.bins, self.copies, self.optional = bins, copies, optional
        self.warns = self._started = False  # whether warnings are issued here, and whether `record` was called
        self.per_rollout, self.per_update = updates, parts
        self.lost = 0  # steps that could not be written
        self.not_finite = 0  # micro-batches that were left out
        self.written: Metrics | None = None  # the last line of metrics
        self._lock, self._process, self._described = threading.RLock(), os.getpid(), False
        self._warned: set[str] = set()
        self._begin(start)

    def _begin(self, start: int) -> None:
        self.step, self.update = start + 1, 0  # the rollout, from 1, and the optimiser step on it, from 0
        self.updates: list[Update] = []  # on the current rollout
        self._parts: list[dict[str, list[Any]]] = []  # rows of this rank, since the last update ended
        self._waiting = 0  # how many these are
        self._known: dict[str, Any] = {}  # further metrics of the rollout
        self._keep: int | None = start  # the next write drops what the folder holds of later steps; None: nothing

    @functools.cached_property
    def writer(self) -> RunWriter | None:
        """Of the first rank, which is known when something is first written: ranks may be joined after this is made."""
        dist = torch.distributed
        if self._folder is None or isinstance(self._folder, RunWriter):
            return self._folder
        first = not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0
        return RunWriter(self._folder) if first else None

    def describe(self, config: Mapping[str, Any], engine: str) -> None:
        """Write config.yaml, with the rule as the run's objective, and run.json."""
        if self.rule is not None:
            given = self.rule.model_dump(mode="json", exclude_unset=True)
            config = {"objective": {"name": self.rule.name, **given}, **config}
        self._described = True
        if self.writer is not None:
            with self.writing():
                self.writer.describe(config, engine=engine)

    # --- from the tensors of a loss -------------------------------------------------------------------------------

    def record(
        self,
        logprobs: Tokens,
        old_logprobs: Tokens,
        advantages: Tokens,
        mask: Tokens | None = None,
        *,
        segment_ids: Tensor | None = None,
        cu_seqlens: Tensor | Sequence[int] | None = None,
        sampler_logprobs: Tokens | None = None,
        accepted: Tokens | None = None,
        last: bool | None = None,
        columns: Mapping[str, list[Any]] | None = None,
        **known: Any,
    ) -> dict[str, float]:
        """Record a micro-batch. The last one of an optimiser step returns the metrics of the step, for a logger.

        Tokens are padded (B, T) with a mask, a list of B sequences, or packed (N,) with `segment_ids` or `cu_seqlens`,
        as for `fspo.objectives`; advantages and `accepted` are one per response or one per token. `accepted` is what
        the loss did not clip; without it and without a rule, it is not known what was clipped. `sampler_logprobs` are
        those of the engine that sampled, if it is another. `last` (instead of `parts`): the optimiser step ends here.
        `columns` are further columns of the rows (`reward`, `task`, `truncated`, ...), one value per response, and
        `known` further metrics of the rollout (`reward`, `loss`, ...).
        """
        if unknown := (columns or {}).keys() - set(FURTHER):
            raise ValueError(f"columns cannot have {sorted(unknown)[0]!r}: they may have {', '.join(FURTHER)}")
        if "step" in known:
            raise ValueError("the recorder counts the steps itself: give start, the last step of an earlier run")
        numbers = {name: _metric(name, value) for name, value in known.items()}
        if os.getpid() != self._process:
            return {}
        tokens = {"logprobs": logprobs, "old_logprobs": old_logprobs, "sampler_logprobs": sampler_logprobs,
                  "advantages": advantages, "accepted": accepted}  # fmt: skip
        with self._lock:
            if not self._started:
                self.warns = self._started = True
                atexit.register(self.flush)
                if not self._described:
                    self.describe({}, OWN_LOOP)
            rows = self._rows(tokens, mask, segment_ids, cu_seqlens, columns or {})
            self._waiting += len(rows["length"])
            if self._waiting > MOST_ROWS:
                self._warn("waiting", f"no optimiser step ended within {MOST_ROWS:,} rows: later rows are left out")
                rows = {name: [] for name in rows}
            self._parts.append(rows)
            self._known |= numbers
            ended = len(self._parts) == self.per_update if last is None else last
            return loggable(self.end_update()) if ended else {}

    def _rows(
        self, given: dict[str, Any], mask: Any, segment_ids: Any, cu_seqlens: Any, columns: Mapping[str, list[Any]]
    ) -> dict[str, list[Any]]:
        """The rows of a micro-batch; none of one without a token, or whose log-probs or advantages are not finite."""
        nothing: dict[str, list[Any]] = {name: [] for name in (*OF_A_RESPONSE, *columns)}
        if missing := [name for name in ("logprobs", "old_logprobs", "advantages") if given[name] is None]:
            raise ValueError(f"{missing[0]} is None: a record needs log-probs, old log-probs and advantages")
        given, mask = {name: _tensors(name, values) for name, values in given.items()}, _tensors("mask", mask)
        logprobs, per_response = given["logprobs"], {}
        if not (sum(map(len, logprobs)) if isinstance(logprobs, list) else logprobs.numel()):
            return nothing
        shape = getattr(logprobs, "shape", None)
        for name in ("advantages", "accepted"):
            value = given[name]
            if not isinstance(value, list) and (value is None or value.shape != shape):
                per_response[name] = given.pop(name)
        with torch.no_grad():
            mask = [m.bool() for m in mask] if isinstance(mask, list) else mask if mask is None else mask.bool()
            tokens, mask, packing = laid_out(given, mask, segment_ids, cu_seqlens)
            if mask is None and packing is None:
                raise ValueError("padded log-probs need a mask (B, T); packed ones need segment_ids or cu_seqlens")
            known = {name: x.detach() for name, x in (tokens | per_response).items() if x is not None}
            new, old, A = known["logprobs"], known["old_logprobs"], known["advantages"]
            kind = torch.promote_types(new.dtype, torch.float32)  # sums in half precision would lose counts
            try:
                batch = Batch.check(new, old, A.to(kind), mask, packing=packing)
            except NotFiniteError:
                self.not_finite += 1
                text = "log-probs or advantages are NaN or infinite: such micro-batches have no rows"
                self._warn("not_finite", text, of_rank=True)
                return nothing
            sampler, accepted = tokens["sampler_logprobs"], per_response.get("accepted")
            if "accepted" in tokens:
                accepted = batch.share(tokens["accepted"].to(kind))
            elif accepted is None and self.rule is not None:
                whole = batch.by_token and not self.rule.needs_tokens
                asked = replace(batch, advantages=batch.share(batch.advantages)) if whole else batch
                accepted = self.rule.surrogate(asked).accepted
            if sampler is not None and sampler.shape != new.shape:
                raise ValueError(f"sampler_logprobs must have the shape of logprobs, {tuple(new.shape)}")
            if accepted is not None and accepted.dim() != 1:
                raise ValueError(f"accepted must be one per response or one per token, not {tuple(accepted.shape)}")
            for name, values in {**columns, "accepted": accepted}.items():
                if values is not None and len(values) != len(batch.lengths):
                    raise ValueError(f"{name} has {len(values)} values where there are {len(batch.lengths)} responses")
                if name in columns:
                    check_column(name, values)
            rows = response_rows(batch, accepted, sampler, self.rule, columns)
        if any(share is not None and abs(share - 0.5) > 0.501 for share in rows["accepted"]):
            text = "accepted is not a share between 0 and 1: it is left out of the rows"
            self._warn("accepted", text, of_rank=True)
            rows["accepted"] = [None] * len(rows["accepted"])
        rows["accepted"] = [share if share is None else min(1.0, max(0.0, share)) for share in rows["accepted"]]
        return rows

    # --- updates and rollouts -------------------------------------------------------------------------------------

    def end_update(self, **known: Any) -> dict[str, Any]:
        """End an optimiser step, on every rank at once, and return its metrics; `known` are more of the rollout's."""
        columns = gather(self._parts, self.copies)
        self._parts, self._waiting = [], 0
        self._known |= known
        metrics = self._learn(columns) if columns["length"] else {}
        self.update += 1
        ended = self.update >= self.per_rollout
        if ended or sum(len(u.columns["length"]) for u in self.updates) > MOST_ROWS:
            self.flush()
            if self.updates:
                self.updates, self._keep = [], None
            self.step += 1
        if ended:
            self.update, self._known = 0, {}
        return metrics

    def _learn(self, columns: dict[str, list[Any]], known: Mapping[str, float] | None = None) -> dict[str, Any]:
        """The metrics of an update, from the rows of all ranks and from what is known of it."""
        metrics = {**(known or {}), "kl": math.fsum(columns["kl"]) / math.fsum(columns["length"])}
        done = Update(self.update, self.update, columns, metrics | mismatch(columns, self.bins))
        self.add(done)
        clipped = clipping([done], self.bins, draws=0) if done.off_policy else {}
        return done.metrics | {"on_policy": not done.off_policy} | clipped

    def flush(self) -> None:
        """Write the rows and metrics of the rollout so far, for a loop that stops in the middle of one; should it go
        on, they are written again with what follows."""
        if os.getpid() != self._process:
            return
        with self._lock:
            if updates := self.updates:
                if self._keep is not None:
                    _last[str(self._folder)] = id(self)  # it takes the folder over from an earlier recorder
                elif self._folder is not None and _last.get(str(self._folder)) != id(self):
                    self._warn("two", f"two recorders write to {self._folder}: make one, or give each its own folder")
                self.written = self.close(self.step, keep=self._keep, **self._known)
                self.updates, self._keep = updates, self.step - 1
                for kind, text in self.written.warnings.items() if self.warns else ():
                    self._warn(kind, text)

    def add(self, update: Update) -> None:
        self.updates.append(update)

    def close(self, step: int, *, keep: int | None = None, **known: Any) -> Metrics:
        """End a step: write its metrics and rows, and return the metrics. `known` are further metrics.

        What the folder has of steps after `keep`, if given, is dropped first.
        """
        updates, self.updates = self.updates, []
        values = known | (summarise(updates, self.bins) if updates else {})
        metrics = Metrics(step=step, **values)
        metrics = metrics.model_copy(update={"warnings": warnings_of(metrics)})
        if self.writer is not None:
            with self.writing():
                if keep is not None:
                    self.writer.cut(keep)
                self.writer.rows(metrics.step, _table(updates, metrics.step))
                self.writer.append(metrics)
                for cosine in (u.cosine for u in updates if u.cosine is not None):
                    self.writer.append(cosine)
        return metrics

    @contextmanager
    def writing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not self.optional:
                raise
            self.lost += 1
            self._warn("lost", f"the run folder cannot be written ({error}): the run goes on without records")

    def _warn(self, kind: str, text: str, *, of_rank: bool = False) -> None:
        """Once per kind, on the rank that writes, or for what concerns the rows `of_rank` on any rank."""
        if (of_rank or self.writer is not None) and kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(text, RunWarning, stacklevel=3)


def _tensors(name: str, values: Any) -> Any:
    """Arrays and lists of numbers as tensors; a list of sequences stays a list."""
    try:
        if isinstance(values, list | tuple) and not (values and np.ndim(values[0]) == 0):
            return [torch.as_tensor(row) for row in values]
        return values if values is None else torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} must hold numbers: {str(error).splitlines()[0]}") from None


def _metric(name: str, value: Any) -> float:
    """A further metric as a float; refused if `Metrics` has another type under that name."""
    try:
        Metrics(step=1, keep=None, **{name: float(value)})
    except (TypeError, ValueError, RuntimeError):
        shown = " ".join(repr(value).split())[:40]
        raise ValueError(f"{name} = {shown} is no metric: give a number (whole for a count), or another name") from None
    return float(value)


_recorders: dict[str, tuple[Recorder, dict[str, Any]]] = {}  # of `record`, with the settings of the first call
_last: dict[str, int] = {}  # the id of the recorder that began last in each folder


def record(
    folder: str | Path,
    *tensors: Any,
    rule: str | Objective | None = None,
    updates: int = 1,
    parts: int = 1,
    **more: Any,
) -> dict[str, float]:
    """One line in any loss: `Recorder.record` of the folder's recorder, which the first call makes.

    >>> import torch, fspo
    >>> old, mask = -torch.rand(4, 9), torch.ones(4, 9, dtype=torch.bool)
    >>> advantages = torch.tensor([1.0, 1.0, -1.0, -1.0])
    >>> metrics = fspo.record("runs/one-line", old + 0.01, old, advantages, mask, rule="gspo")
    >>> metrics["clip_rate"]
    0.5
    """
    key = os.path.abspath(folder)
    settings: dict[str, Any] = {"rule": rule, "updates": updates, "parts": parts}
    if key not in _recorders:
        _recorders.setdefault(key, (Recorder(folder, **settings), settings))
    recorder, first = _recorders[key]
    if settings != first:
        recorder._warn("other", f"{folder} keeps {first} of its first call: use another folder for {settings}")
    return recorder.record(*tensors, **more)


def summarise(updates: list[Update], bins: int = BINS) -> dict[str, Any]:
    """The metrics of the updates on a rollout, see `fspo.runs.Metrics`: clipping over all off-policy updates."""
    done = [u for u in updates if not u.skipped]
    moved = [u for u in done if u.off_policy]
    values: dict[str, Any] = {
        "on_policy": not moved,
        "updates": len(updates),
        "rows": sum(len(u.columns["length"]) for u in done),
    }
    own = {key for u in done for key in u.metrics} - Metrics.model_fields.keys()
    for key in (*MEANS, *sorted(own)):
        each = [u.metrics[key] for u in done if key in u.metrics]
        if each:
            values[key] = float(np.mean(each))
    if done:
        # Of the last update that computed anything: how far the step went.
        values["kl"] = next((u.metrics["kl"] for u in reversed(done) if "kl" in u.metrics), None)
    if moved:
        values |= clipping(moved, bins)
        values["ess"] = min(u.metrics["ess"] for u in moved)
        values |= {key: moved[-1].metrics[key] for key in LAST if key in moved[-1].metrics}
    return values


def clipping(updates: list[Update], bins: int = BINS, draws: int = 4000) -> dict[str, Any]:
    """What clipping did to responses of every length in these updates; empty where none has a gradient.

    `draws` are those of the LRE's interval.
    """
    S, L, accepted, has_gradient = (
        np.concatenate([getattr(u, name) for u in updates if u.clips] or [np.zeros(0)])
        for name in ("log_ratio", "lengths", "accepted", "has_gradient")
    )
    if not len(S):
        return {}
    has_gradient = has_gradient.astype(bool)
    S, L, accepted = S[has_gradient], L[has_gradient], accepted[has_gradient]
    report = report_of_bins(cut(L, bins), 1 - np.clip(accepted, 0, 1), draws=draws)
    return {
        "clip_rate": report.clip_rate,
        "lre": report.lre,
        "lre_interval": report.lre_interval,
        "flatness": report.flatness,
        "clip_by_length": [
            ClipBin(low=b.low, high=b.high, count=b.count, clip_rate=b.clip_rate, interval=b.clip_interval)
            for b in report.bins
        ],
    }


def mismatch(columns: Mapping[str, list[Any]], bins: int = BINS) -> dict[str, float]:
    """How far sampler and trainer differ, and what the rule for that dropped by length, where they are known."""
    if not columns["mismatch"] or None in columns["mismatch"]:
        return {}
    D, L = (np.array(columns[name], dtype=np.float64) for name in ("mismatch", "length"))
    mu = ratios.drift(D, L)
    values = {"mu": mu, "sigma": ratios.scale(D, L, mu), "ess": ratios.effective_share(D)}
    if None not in columns["kept"]:
        report = report_of_bins(cut(L, bins), 1 - np.array(columns["kept"]), draws=0)
        values |= {"outside": report.clip_rate, "lre": report.lre}
        values |= {f"by_length/{k}": b.clip_rate for k, b in enumerate(report.bins, 1)}
    return {f"mismatch_{name}": value for name, value in values.items()}


def loggable(metrics: dict[str, Any]) -> dict[str, float]:
    """The metrics of an update as plain finite numbers, for a trainer's own log; bins are numbered from 1."""
    bins = {f"clip_by_length/{k}": b.clip_rate for k, b in enumerate(metrics.get("clip_by_length", []), 1)}
    numbers = {name: float(value) for name, value in (metrics | bins).items() if isinstance(value, int | float)}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def warnings_of(metrics: Metrics) -> dict[str, str]:
    """What a user should act on, by kind."""
    kinds = {}
    if (metrics.truncated or 0) > 0.5:
        kinds["truncated"] = (
            f"{metrics.truncated:.0%} of the answers reached the token limit and were truncated: raise it, or most "
            "rewards are of unfinished answers"
        )
    groups = metrics.groups or 0
    flat = (metrics.groups_without_variance or 0) + (metrics.groups_single or 0)
    if flat > 0.8 * groups:
        kinds["variance"] = (
            f"{flat} of {groups} groups have no variance in their rewards and teach nothing: use an easier or harder "
            "task, or larger groups"
        )
    kinds |= unscored_warnings(metrics)
    if metrics.on_policy and metrics.updates == 1:
        kinds["on_policy"] = (
            "every update is on-policy, so the ratio is 1 and clipping cannot act: make more updates per rollout "
            "(epochs or minibatches), or train on older answers"
        )
    if metrics.clip_rate is not None and metrics.clip_rate > NEARLY_ALL:
        kinds["clip_rate"] = (
            f"clipping removed {metrics.clip_rate:.0%} of the gradients: widen the objective's clip range (`fspo "
            "audit` of the run recommends one), or lower the learning rate or the number of updates per rollout"
        )
    if metrics.ess is not None and metrics.ess < FEW_SAMPLES:
        kinds["drift"] = (
            f"the effective sample size fell to {metrics.ess:.1%}: the policy has drifted far from the one that "
            "sampled; lower the learning rate or the number of updates per rollout"
        )
    return kinds


def _table(updates: list[Update], step: int) -> dict[str, list[Any]]:
    """One row per response and update that moved the policy, by column, see `fspo.runs.rows`."""
    table: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for u in (u for u in updates if not u.skipped):
        count = len(u.columns["length"])
        same = {"step": step, "update": u.update, "staleness": u.staleness, "off_policy": u.off_policy}
        columns = u.columns | {name: [value] * count for name, value in same.items()}
        for name, values in table.items():
            values.extend(columns.get(name, [None] * count))
    return table


# --- rows from the tensors of a micro-batch ---------------------------------------------------------------------------


def response_rows(
    batch: Batch,
    accepted: Tensor | None,
    sampler: Tensor | None = None,
    rule: Objective | None = None,
    columns: Mapping[str, list[Any]] | None = None,
) -> dict[str, list[Any]]:
    """One row per response of a micro-batch that has a trained token, by column; see `OF_A_RESPONSE`.

    `accepted` (B,) is the share of each response's gradient that survived clipping. `sampler` are the log-probs of
    the sampler, one per token, to which the mismatch rule of `rule` applies.
    """
    with torch.no_grad():
        A = batch.share(batch.advantages) if batch.by_token else batch.advantages
        kl = batch.row_sum(low_variance_kl(batch.token_log_ratio.detach()), zeroed=True)
        D = kept = None
        if sampler is not None:  # a token without a finite number of the sampler's counts as matching
            old = batch.logprobs.detach() - batch.token_log_ratio.detach()
            D = batch.row_sum(torch.nan_to_num(old - sampler, nan=0.0, posinf=0.0, neginf=0.0))
            if rule is not None and rule.mismatch is not None:
                changed = rule.mismatch.weights(old, sampler, batch.mask, batch.packing, batch)[1]
                kept = 1 - (changed.to(D.dtype) if changed.shape == D.shape else batch.share(changed))
        per_response = dict(zip(OF_A_RESPONSE, (batch.log_ratio, batch.lengths, A, kl, accepted, D, kept), strict=True))
        known = {name: x.detach().to(batch.lengths.device) for name, x in per_response.items() if x is not None}
        table = torch.stack([x.double() for x in known.values()]).cpu()  # one transfer
    trained: Sequence[int] = range(table.shape[1])
    if batch.empty is not None:
        trained = (~batch.empty).nonzero().flatten().tolist()
        table = table[:, trained]
    rows: dict[str, list[Any]] = dict.fromkeys(per_response, [None] * len(trained)) | dict(
        zip(known, table.tolist(), strict=True)
    )
    more = {name: [values[k] for k in trained] for name, values in (columns or {}).items()}
    return rows | more | {"length": [int(n) for n in rows["length"]]}


def gather(parts: list[dict[str, list[Any]]], copies: int = 1) -> dict[str, list[Any]]:
    """The rows of all micro-batches of all ranks, in the same order on each rank; `copies` as in `Recorder`."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        all_parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(all_parts, parts)
        parts = [part for rank in all_parts[::copies] for part in rank]
    if not parts:
        raise RuntimeError("the update has no loss: record one before it is ended")
    return {name: [value for part in parts for value in part[name]] for name in parts[0]}
