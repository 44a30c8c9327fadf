"""The optimiser steps on one rollout: minibatches of whole groups, micro-batches by token budget, exact totals."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fspo import ratios
from fspo.config import TrainConfig
from fspo.model.completions import Completions, split
from fspo.model.forward import LogProbs, logprobs
from fspo.model.loading import Policy
from fspo.objectives import Objective, Totals
from fspo.objectives.batch import masked
from fspo.objectives.objective import Output
from fspo.objectives.primitives import low_variance_kl
from fspo.ratios import Floats
from fspo.training.direction import Direction, measure_direction
from fspo.training.experience import Experience, group_order
from fspo.training.gradient_norm import NormLimit
from fspo.training.master_weights import MasterWeights
from fspo.training.old_logprobs import OldLogProbs, logprob_table, policy_logprobs, shared_logprobs
from fspo.training.step_metrics import update_statistics
from fspo.training.team import Team


@dataclass
class Update:
    """One optimiser step: its responses, what happened to each, and its metrics."""

    update: int
    staleness: int
    members: list[int]  # its responses
    computed: list[int]  # those of them that had a forward pass: the others have no gradient
    log_ratio: Tensor  # of the computed ones
    accepted: Tensor
    metrics: dict[str, float]
    off_policy: bool  # whether the policy had moved since the responses were sampled
    skipped: bool
    direction: Direction | None = None  # where it was asked for and there is one


class Learner:
    """Moves a policy along an objective. The rows of a minibatch are shared among the processes of a team."""

    def __init__(self, policy: Policy, objective: Objective, config: TrainConfig, team: Team | None = None) -> None:
        settings = config.update
        self.policy, self.objective, self.config, self.team = policy, objective, config, team or Team()
        self.parameters = policy.trainable()
        self.master = MasterWeights(self.parameters)
        self.norm_limit = NormLimit(settings)
        fused = all(p.device.type in ("cpu", "cuda") for p in self.parameters)
        self.optimizer = torch.optim.AdamW(
            self.master.weights, lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay, fused=fused
        )

    def learn(self, experience: Experience, step: int) -> list[Update]:
        """All epochs and minibatches of a step."""
        settings = self.config.update
        lr = self.learning_rate(step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        members = experience.members
        updates: list[Update] = []
        every = self.config.log.cosine
        behind = self.config.rollout.staleness * settings.epochs * settings.minibatches
        for epoch in range(settings.epochs):
            deal = group_order(len(experience.prompts), settings.minibatches, (self.config.seed, step, epoch))
            if experience.old is None:
                later = [i for part in deal[1:] for g in part for i in members[g]]
                self._take_old(experience, self._needed(experience, later))
            for part in deal:
                rows = [i for g in part for i in members[g]]
                last = epoch == settings.epochs - 1 and part is deal[-1]
                compare = last and bool(every) and step % every == 0
                updates.append(self._update(experience, rows, len(updates), behind + len(updates), compare))
        return updates

    def learning_rate(self, step: int) -> float:
        """Of a step, counted from 1."""
        settings, steps = self.config.update, self.config.steps
        if step <= settings.lr_warmup:
            return settings.lr * step / settings.lr_warmup
        done = (step - 1 - settings.lr_warmup) / max(1, steps - settings.lr_warmup)
        if settings.schedule == "linear":
            return settings.lr * (1 - done)
        if settings.schedule == "cosine":
            return settings.lr * 0.5 * (1 + math.cos(math.pi * done))
        return settings.lr

    def _needed(self, experience: Experience, rows: list[int]) -> list[int]:
        """Those of these rows that are computed: all, or where the others change nothing, those with a gradient."""
        if self.config.update.all_rows or self.objective.needs_all_rows:
            return rows
        return [i for i in rows if ratios.has_gradient(experience.advantages[i])]

    def _take_old(self, experience: Experience, rows: list[int]) -> None:
        """Old log-probs of these rows before the policy moves; those of the first minibatch come for free from the
        forward that trains it."""
        experience.old = OldLogProbs.unknown(experience.batch, self.policy.device)
        if rows:
            temperature, budget = self.config.rollout.temperature, self.config.update.token_budget
            found = shared_logprobs(self.team, self.policy, experience.batch.select(rows), temperature, budget)
            experience.old.fill(rows, found)

    def _update(self, experience: Experience, rows: list[int], update: int, staleness: int, compare: bool) -> Update:
        """One optimiser step, the same in every process; `compare` also measures the direction of its first
        micro-batch."""
        assert experience.old is not None
        computed = self._needed(experience, rows)
        lengths = np.array(experience.lengths, dtype=np.float64)
        own = [computed[i] for i in self.team.share(lengths[computed].tolist())]
        fresh = not experience.old.any_known(computed)
        self.optimizer.zero_grad(set_to_none=True)
        mine = self._differentiate(
            experience, own, rows, len(computed), lengths, staleness, compare and self.team.leads
        )
        if fresh and self.team.size > 1:
            mine.old = experience.old.at(own).cpu()
        parts = self.team.gather(mine)
        if fresh and self.team.size > 1:
            experience.old.fill(computed, torch.cat([part.old for part in parts if part.old is not None]))
        log_ratio, accepted = (torch.cat([getattr(part, name) for part in parts]) for name in ("log_ratio", "accepted"))
        loss = sum(part.loss for part in parts)
        healthy = all(part.healthy for part in parts)
        if computed:
            self.team.sum_gradients(self.master.weights)
        else:  # the optimiser's momentum moves the weights all the same
            self.master.no_gradient()
        norm, shortened = self.norm_limit.apply(self.master.weights) if healthy else (math.nan, False)
        healthy = healthy and math.isfinite(norm) and math.isfinite(loss)
        if healthy:
            self.optimizer.step()
            self.master.publish()
            self.objective.observe(log_ratio, torch.tensor(lengths[computed]), staleness)
        metrics = {key: sum(part.metrics.get(key, 0.0) for part in parts) for part in parts for key in part.metrics}
        metrics |= {"loss": loss, "grad_norm": norm, "norm_clipped": float(shortened)}
        if computed:
            metrics["kl"] = sum(part.kl for part in parts) / float(lengths[computed].sum())
        advantages = np.array(experience.advantages)[computed]
        found = update_statistics(log_ratio.numpy(), lengths[computed], accepted.numpy(), advantages)
        off_policy = bool(found.pop("off_policy"))
        return Update(
            update, staleness, rows, computed, log_ratio, accepted, metrics | found, off_policy, not healthy,
            mine.direction,
        )  # fmt: skip

    def _differentiate(
        self, experience: Experience, own: list[int], rows: list[int], computed: int, lengths: Floats, staleness: int,
        compare: bool,
    ) -> _Part:  # fmt: skip
        """Add up the gradients of this process's rows `own`, micro-batch by micro-batch; `rows` are the minibatch's,
        of which all processes together compute `computed`."""
        part, old_logprobs = _Part(len(own)), experience.old
        assert old_logprobs is not None
        advantages = torch.tensor(experience.advantages, dtype=torch.float64)[own]
        micro = split(experience.batch.select(own), self.config.update.token_budget) if own else []
        totals, out = Totals(len(rows), float(lengths[rows].sum()), 0.0), None
        if self.objective.estimates and old_logprobs.any_known(rows):
            totals, out = self._estimated(experience, own, micro)
        if math.isnan(totals.log_ratio):
            part.healthy = False
            return part
        for k, (batch, places) in enumerate(micro):
            out = self._forward(batch) if k or out is None else out
            chosen = [own[i] for i in places.tolist()]
            old = old_logprobs.take(chosen, out)
            if not torch.isfinite(out.logprobs.detach().sum()):
                part.healthy = False
                break
            width = out.mask.shape[1]
            options: dict[str, Any] = {"entropy": out.entropy}
            if experience.reference is not None:
                options["ref_logprobs"] = experience.reference[chosen, :width]
            if self.objective.mismatch is not None and experience.sampler_logprobs is not None:
                sampled = [experience.sampler_logprobs[i] for i in chosen]
                options["sampler_logprobs"] = logprob_table(sampled, width, out.logprobs.detach())
            inputs = (out.logprobs, old, advantages[places].to(out.logprobs), out.mask)
            if compare and k == 0:
                bins = self.config.log.bins
                part.direction = measure_direction(self.objective, inputs, totals, staleness, self.parameters, bins)
            result = self.objective(*inputs, totals=totals, staleness=staleness, **options)
            result.loss.backward()
            self.master.accumulate()
            part.add(result, places, len(places) / computed, float(_kl(out, old)))
        return part

    def _forward(self, part: Completions) -> LogProbs:
        with_entropy = self.objective.entropy_coef > 0
        return logprobs(self.policy, part, self.config.rollout.temperature, with_entropy=with_entropy)

    def _estimated(
        self, experience: Experience, own: list[int], micro: list[tuple[Completions, Tensor]]
    ) -> tuple[Totals, LogProbs | None]:
        """Sums over the minibatch for an objective that estimates its band from the data, which it needs before the
        first micro-batch is differentiated. Where this process has one, they come from its forward, which is returned
        too; where it has several, from a pass of their own. NaN where log-probs are not finite."""
        sums, out, now = [0.0] * len(Totals(0, 0).vector()), None, None
        if len(micro) == 1:
            out = self._forward(micro[0][0])
            own = [own[i] for i in micro[0][1].tolist()]
            now = torch.where(out.mask, out.logprobs.detach(), math.nan)
        elif micro:
            budget = self.config.update.token_budget
            now = policy_logprobs(self.policy, experience.batch.select(own), self.config.rollout.temperature, budget)
        if now is not None:
            assert experience.old is not None
            old = experience.old.at(own, now.shape[1])
            mask = ~torch.isnan(old)
            finite = torch.isfinite(now[mask]).all()
            sums = Totals.of(now, old, mask).vector() if finite else [math.nan] * len(sums)
        return Totals.from_vector(self.team.total(sums)), out


@dataclass
class _Part:
    """What one process found at its rows of a minibatch."""

    rows: int
    healthy: bool = True
    loss: float = 0.0
    kl: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    direction: Direction | None = None
    old: Tensor | None = None  # log-probs of its rows, where they were not known before

    def __post_init__(self) -> None:
        self.log_ratio, self.accepted = torch.zeros(2, self.rows, dtype=torch.float64)

    def add(self, result: Output, places: Tensor, share: float, kl: float) -> None:
        """The result of a micro-batch; `share` is the fraction of the minibatch's computed rows that it holds."""
        self.log_ratio[places], self.accepted[places] = result.log_ratio.double().cpu(), result.accepted.double().cpu()
        for key, value in result.metrics.items():
            self.metrics[key] = self.metrics.get(key, 0.0) + share * value
        self.loss += float(result.loss.detach())
        self.kl += kl


def _kl(out: LogProbs, old: Tensor) -> Tensor:
    """Sum over tokens of the low-variance estimate of KL(old || new)."""
    return low_variance_kl(masked(out.logprobs.detach() - old, out.mask)).sum()
