"""The base of every objective: check the batch, ask the subclass for its surrogate, aggregate, measure."""

from __future__ import annotations

import operator
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fspo import ratios
from fspo.objectives.batch import Batch, Totals, widened
from fspo.objectives.clipping import Array, AtRate, Band, Responses, Weighting, at_rate, default_survival
from fspo.objectives.options import KLPenalty, Mismatch
from fspo.objectives.packing import laid_out
from fspo.objectives.primitives import with_gradient
from fspo.settings import Settings
from fspo.tensors import Tensor, torch

Aggregation = Literal["sequence_mean_of_means", "sequence_mean_of_sums", "token_mean"]

NEARLY_ALL = 0.8  # a clip rate above this is worth a warning
FEW = 8  # smaller batches give no reliable clip rate
_warned: set[str] = set()  # objectives that were warned about in a user's own loop


@dataclass(frozen=True)
class Surrogate:
    """What an objective computes from a batch: the quantity to maximise and what clipping did to it.

    An objective of whole responses gives a differentiable `value` (B,). One of tokens gives `value` and its derivative
    `slope`, both (B, T) or (B, 1) constants: the token's gradient is known in closed form, and keeping that one tensor
    costs less than the graph of the operations would. Both are already multiplied by the advantage, and the base class
    may overwrite them.
    """

    value: Tensor
    accepted: Tensor  # (B,) in [0, 1]: share of the response's gradient that survived
    capped: Tensor  # (B,) in [0, 1]: share whose exponent hit the hard cap
    slope: Tensor | None = None
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Output:
    """The result of an objective on a batch."""

    loss: Tensor  # scalar, differentiable: minimise it
    log_ratio: Tensor  # (B,) S, detached
    accepted: Tensor  # (B,) in [0, 1]: share of the response's gradient that survived clipping
    lengths: Tensor  # (B,) L, 0 where a response has no trained token
    metrics: dict[str, float]


class Objective(Settings, ABC):
    """A policy objective. The object is its own configuration: immutable, checked, with vetted defaults.

    Acceptance is min(1, weight / importance ratio): 0 or 1 for a hard clip, between for a soft one.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    aggregation: ClassVar[Aggregation]
    label: ClassVar[str]  # its name in charts and tables; the name itself if a class sets none
    colour: ClassVar[int] = 6  # in the palette of the pages, 1 to 10
    clip_fields: ClassVar[tuple[str, ...]] = ()  # the parameters of its clip range
    clips: ClassVar[bool] = True  # whether a response can lose its gradient
    clips_tokens: ClassVar[bool] = False  # whether `band` is on a token's log-ratio and not on S
    needs_tokens: ClassVar[bool] = False  # whether acceptance depends on more than S and L
    additive: ClassVar[bool] = True  # whether losses of the parts of a batch add up, given the totals of the whole

    exponent_cap: float = Field(20.0, gt=0, le=80, description="hard cap on any exponent; counted when it acts")
    kl: KLPenalty | None = Field(None, description="penalty to a reference policy; needs ref_logprobs")
    entropy_coef: float = Field(0.0, ge=0, description="weight of the mean token entropy; needs entropy")
    mismatch: Mismatch | None = Field(None, description="sampler correction; needs sampler_logprobs")

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        if "label" not in vars(cls) and hasattr(cls, "name"):
            cls.label = cls.name

    @property
    def estimates(self) -> bool:
        """Whether the loss takes a drift from the batch, and so needs the sums of the whole batch."""
        return False

    @property
    def learns(self) -> bool:
        """Whether `observe` changes what later updates clip."""
        return type(self).observe is not Objective.observe

    @property
    def needs_all_rows(self) -> bool:
        """Whether responses of advantage 0 change an update: through a penalty or a bonus, because the drift is taken
        from all log-ratios, or because tokens are ranked. Otherwise they need not be computed."""
        penalised = self.kl is not None or self.entropy_coef > 0
        return penalised or self.estimates or not self.additive

    @abstractmethod
    def surrogate(self, batch: Batch) -> Surrogate:
        """The clipped objective of each response or token, to be maximised."""

    # --- what it clips, as audit, report, compare and explore ask it -----------------------------------------------

    def band(self, lengths: Any, totals: Totals) -> Band | None:
        """Where S (or a token's log-ratio) is not clipped, at each of `lengths`; None where there is no such range.

        `totals` are the sums of the batch, from which a band may take its drift. Tensors and arrays both work.
        """
        return None

    def weighting(self, lengths: Any) -> Weighting | None:
        """How S enters the loss at each of `lengths`; None where it is not through a ratio of the whole response."""
        return None

    def cap(self, lengths: Any) -> Any:
        """The S (or token log-ratio) at which the hard cap on the exponent acts, at each of `lengths`."""
        weighting = self.weighting(lengths)
        return self.exponent_cap if weighting is None else self.exponent_cap / weighting.scale

    def scaled(self, k: float) -> Objective | None:
        """A copy with a clip range k times as wide, in log space; None where there is no range to set."""
        return None

    def centred(self, mu: float) -> Objective:
        """A copy with its band centred on a drift that was measured, where the band has a centre."""
        return self

    def recorded(self, metrics: Mapping[str, Any]) -> Objective:
        """A copy with the band that an update recorded in its metrics."""
        return self

    def survival(self, rows: Responses) -> Callable[[float], Array]:
        """For a soft objective: the acceptance of each response as a function of the k of `scaled`."""
        return default_survival(self, rows) if self.clips else lambda k: np.ones(len(rows.lengths))

    def at_clip_rate(self, rows: Responses, clip_rate: float) -> AtRate:
        """A copy with the range that clips this share of the responses that have a gradient."""
        return at_rate(self, rows, clip_rate)

    @property
    def clip_parameters(self) -> dict[str, Any]:
        """The parameters of its clip range."""
        return {name: getattr(self, name) for name in self.clip_fields}

    # --- the loss ---------------------------------------------------------------------------------------------------

    def __call__(
        self,
        logprobs: Tensor | Sequence[Tensor],
        old_logprobs: Tensor | Sequence[Tensor],
        advantages: Tensor,
        mask: Tensor | Sequence[Tensor] | None = None,
        *,
        segment_ids: Tensor | None = None,
        cu_seqlens: Tensor | Sequence[int] | None = None,
        totals: Totals | None = None,
        staleness: int = 0,
        ref_logprobs: Tensor | Sequence[Tensor] | None = None,
        entropy: Tensor | Sequence[Tensor] | None = None,
        sampler_logprobs: Tensor | Sequence[Tensor] | None = None,
        sampler_weights: Tensor | Sequence[Tensor] | None = None,
    ) -> Output:
        """The loss of a batch of B responses.

        Tokens come in one of three forms, with the same value and gradient: padded anywhere, (B, T) with `mask` (B, T)
        bool, the trained tokens; as a list of B tensors; or packed, flat (N,) with `segment_ids` (N,) or `cu_seqlens`
        (B + 1,). A mask may be left out of the last two.

        logprobs, old_logprobs: of the current and of the behaviour policy; advantages: (B,). `totals` are the sums over
        the whole batch when this is only a part of it: the losses of the parts then add up to the loss of the whole.
        `staleness` is the number of optimiser steps since the answers were sampled; only objectives with a state look
        at it. `sampler_weights` are those of an engine that has corrected for its sampler already.
        """
        names = ("logprobs", "old_logprobs", "ref_logprobs", "entropy", "sampler_logprobs", "sampler_weights")
        given = (logprobs, old_logprobs, ref_logprobs, entropy, sampler_logprobs, sampler_weights)
        tokens, mask, packing = laid_out(dict(zip(names, given, strict=True)), mask, segment_ids, cu_seqlens)
        batch = Batch.check(tokens["logprobs"], tokens["old_logprobs"], advantages, mask, totals, staleness, packing)
        surrogate = self.surrogate(batch)
        metrics = dict(surrogate.metrics)
        weights = None
        if tokens["sampler_weights"] is not None:
            if self.mismatch is not None:
                raise ValueError("sampler_weights correct for the sampler already: leave the option mismatch out")
            weights = _given(tokens, "sampler_weights", "sampler_weights", batch)
        elif self.mismatch is not None:
            sampler = _given(tokens, "sampler_logprobs", "mismatch", batch)
            weights, changed = self.mismatch.weights(widened(tokens["old_logprobs"]), sampler, mask, packing, batch)
            per_response = changed.shape == batch.lengths.shape
            outside = changed.to(batch.lengths.dtype) if per_response else batch.share(changed)
            metrics["mismatch_outside"] = batch.mean(outside)
        loss = -self._policy(surrogate, weights, batch)
        if self.kl is not None:
            kl = self.kl.per_token(batch, _given(tokens, "ref_logprobs", "kl", batch), self.exponent_cap)
            loss = loss + self.kl.coef * (batch.row_sum(kl) * self._penalty_scale(batch)).sum()
            metrics["kl_reference"] = batch.mean(batch.share(kl.detach()))
        if self.entropy_coef:
            bonus = batch.row_sum(_given(tokens, "entropy", "entropy_coef", batch)).sum() / batch.totals.tokens
            loss = loss - self.entropy_coef * bonus
        metrics |= _measure(batch, surrogate)
        rate = metrics.get("clip_rate", 0.0)
        own_loop = totals is None and len(batch.lengths) >= FEW  # trainers give totals and warn by themselves
        if own_loop and rate > NEARLY_ALL and self.name not in _warned:
            _warned.add(self.name)
            warnings.warn(
                f"{self.name} clipped {rate:.0%} of the gradients of a batch: widen its range, or lower the learning "
                "rate or the number of updates per rollout",
                stacklevel=2,
            )
        lengths = batch.lengths if batch.empty is None else batch.lengths.masked_fill(batch.empty, 0)
        return Output(loss, batch.log_ratio.detach(), surrogate.accepted, lengths, metrics)

    def per_response(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(B,) differentiable parts that add up to the policy objective, and (B,) the share of each that survived.

        Per-response terms of `__call__`, without penalties and sampler weights.
        """
        surrogate = self.surrogate(batch)
        if surrogate.slope is None:
            return surrogate.value / batch.totals.sequences, surrogate.accepted
        tokens = surrogate.value + surrogate.slope * (batch.logprobs - batch.logprobs.detach())
        return batch.row_sum(tokens) * self._row_scale(batch), surrogate.accepted

    def observe(self, log_ratio: Tensor, lengths: Tensor, advantages: Tensor, staleness: int = 0) -> None:
        """Learn from the responses of an update, once, after it; those of advantage 0 need not be among them."""

    def state_dict(self) -> dict[str, Any]:
        """What the objective has learnt, as plain numbers that JSON can hold; empty for most."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            raise ValueError(f"{self.name} keeps no state, so it cannot load one with keys {sorted(state)}")

    def _row_scale(self, batch: Batch) -> Tensor | float:
        """What the token sum of a response is multiplied by before responses are added up."""
        if self.aggregation == "token_mean":
            return 1 / batch.totals.tokens
        if self.aggregation == "sequence_mean_of_sums":
            return 1 / batch.totals.sequences
        return 1 / (batch.lengths * batch.totals.sequences)

    def _penalty_scale(self, batch: Batch) -> Tensor | float:
        """The same for a penalty per token: always a mean over tokens, so that a coefficient has one meaning."""
        if self.aggregation == "sequence_mean_of_means":
            return 1 / (batch.lengths * batch.totals.sequences)
        return 1 / batch.totals.tokens

    def _policy(self, surrogate: Surrogate, weights: Tensor | None, batch: Batch) -> Tensor:
        """The mean of the surrogate, weighted for the sampler's mismatch: a differentiable scalar."""
        value, slope = surrogate.value, surrogate.slope
        if slope is None:
            if weights is not None:
                value = value * (weights if weights.shape == value.shape else batch.share(weights))
            return value.sum() / batch.totals.sequences
        with torch.no_grad():
            scale = torch.as_tensor(self._row_scale(batch), dtype=value.dtype, device=value.device)
            if scale.dim():
                scale = batch.spread(scale)
            if weights is not None:
                per_response = weights.shape == batch.lengths.shape
                scale = scale * (batch.spread(weights) if per_response else weights)
            total, slope = _masked_product(value, scale, batch).sum(), _masked_product(slope, scale, batch)
        return with_gradient(batch.logprobs, total, slope, operator.mul)


def _masked_product(tokens: Tensor, scale: Tensor, batch: Batch) -> Tensor:
    """tokens * scale, 0 where masked out; in place if there is one value per token already."""
    if tokens.shape == batch.logprobs.shape:
        return batch.mask_(tokens.mul_(scale))
    return batch.mask_((tokens * scale).expand_as(batch.logprobs).clone())


def _given(tokens: Mapping[str, Tensor | None], name: str, option: str, batch: Batch) -> Tensor:
    value, shape = tokens[name], tuple(batch.logprobs.shape)
    if value is None:
        raise ValueError(f"the option {option} needs {name}: pass it to the call, one value per token")
    if value.shape != shape:
        raise ValueError(f"{name} must have the shape of logprobs, {shape}, not {tuple(value.shape)}")
    return widened(value)


def _measure(batch: Batch, surrogate: Surrogate) -> dict[str, float]:
    """Statistics of this batch alone, from one transfer of per-response numbers.

    The clip rate is of answers with an advantage: the others have no gradient that clipping could remove.
    """
    has_gradient = ratios.has_gradient(batch.advantages)
    if batch.by_token:
        has_gradient = batch.share(has_gradient) > 0
    columns = [batch.log_ratio.detach(), batch.lengths, surrogate.accepted, surrogate.capped, has_gradient]
    table = torch.stack([c.to(batch.lengths.dtype) for c in columns])
    empty = {}
    if batch.empty is not None:
        table, empty = table[:, ~batch.empty], {"empty": float(batch.empty.sum())}
    S, L, accepted, capped, has_gradient = table.cpu().double()
    if not len(S):
        return empty
    s, n = S.numpy(), L.numpy()
    mu = ratios.drift(s, n)
    return {
        **empty,
        "clip_rate": float(((1 - accepted) * has_gradient).sum() / has_gradient.sum().clamp(min=1)),
        "capped": float(capped.mean()),
        "mu": mu,
        "sigma": ratios.scale(s, n, mu),
        "ess": ratios.effective_share(s),
        "on_policy": float(not ratios.off_policy(s, n)),  # rounding between two forward passes is no move
    }
