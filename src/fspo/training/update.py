"""The optimiser steps on one rollout: minibatches of whole groups, micro-batches by token budget, exact totals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fspo.config import TrainConfig
from fspo.model.completions import Completions, split
from fspo.model.forward import LogProbs, logprobs
from fspo.model.loading import Policy
from fspo.objectives import Objective, Totals
from fspo.objectives.batch import masked
from fspo.objectives.primitives import low_variance_kl
from fspo.training.direction import Direction, measure_direction
from fspo.training.experience import Experience, group_order
from fspo.training.master_weights import MasterWeights
from fspo.training.old_logprobs import OldLogProbs, logprob_table, policy_logprobs
from fspo.training.step_metrics import update_statistics


@dataclass
class Update:
    """One optimiser step: its responses, what happened to each, and its metrics."""

    update: int
    staleness: int
    members: list[int]
    log_ratio: Tensor
    accepted: Tensor
    metrics: dict[str, float]
    off_policy: bool  # whether the policy had moved since the responses were sampled
    skipped: bool
    direction: Direction | None = None  # where it was asked for and there is one


class Learner:
    """Moves a policy along an objective."""

    def __init__(self, policy: Policy, objective: Objective, config: TrainConfig) -> None:
        settings = config.update
        self.policy, self.objective, self.config = policy, objective, config
        self.parameters = policy.trainable()
        self.master = MasterWeights(self.parameters)
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
                self._take_old(experience, [i for part in deal[1:] for g in part for i in members[g]])
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

    def _take_old(self, experience: Experience, rows: list[int]) -> None:
        """Old log-probs of these rows before the policy moves; those of the first minibatch come for free from the
        forward that trains it."""
        experience.old = OldLogProbs.unknown(experience.batch, self.policy.device)
        if rows:
            part = experience.batch.select(rows)
            found = policy_logprobs(self.policy, part, self.config.rollout.temperature, self.config.update.token_budget)
            experience.old.fill(rows, found)

    def _update(self, experience: Experience, rows: list[int], update: int, staleness: int, compare: bool) -> Update:
        """One optimiser step; `compare` also measures the direction of its first micro-batch."""
        settings, old_logprobs = self.config.update, experience.old
        assert old_logprobs is not None
        advantages = torch.tensor(experience.advantages, dtype=torch.float64)[rows]
        batch = experience.batch.select(rows)
        parts = split(batch, settings.token_budget)
        totals = self._totals(experience, batch, rows, parts)
        self.optimizer.zero_grad(set_to_none=True)
        log_ratio, accepted = torch.zeros(len(rows), dtype=torch.float64), torch.ones(len(rows), dtype=torch.float64)
        metrics: dict[str, float] = {}
        kl = loss = 0.0
        healthy, direction = True, None
        for k, (part, places) in enumerate(parts):
            out = self._forward(part)
            chosen = [rows[i] for i in places.tolist()]
            old = old_logprobs.take(chosen, out)
            if not torch.isfinite(out.logprobs.detach().sum()):
                healthy = False
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
                direction = measure_direction(self.objective, inputs, totals, staleness, self.parameters, bins)
            result = self.objective(*inputs, totals=totals, staleness=staleness, **options)
            result.loss.backward()
            self.master.accumulate()
            log_ratio[places], accepted[places] = result.log_ratio.double().cpu(), result.accepted.double().cpu()
            share = len(places) / len(rows)
            for key, value in result.metrics.items():
                metrics[key] = metrics.get(key, 0.0) + share * value
            loss += float(result.loss.detach())
            kl += float(_kl(out, old))
        norm = float(torch.nn.utils.clip_grad_norm_(self.master.weights, settings.clip_norm)) if healthy else math.nan
        healthy = healthy and math.isfinite(norm) and math.isfinite(loss)
        if healthy:
            self.optimizer.step()
            self.master.publish()
            self.objective.observe(log_ratio, torch.tensor(batch.lengths), staleness)
        metrics |= {"loss": loss, "grad_norm": norm, "kl": kl / batch.tokens}
        lengths = np.array(batch.lengths, dtype=np.float64)
        found = update_statistics(log_ratio.numpy(), lengths, accepted.numpy(), advantages.numpy())
        off_policy = bool(found.pop("off_policy"))
        return Update(
            update, staleness, rows, log_ratio, accepted, metrics | found, off_policy, not healthy, direction
        )  # fmt: skip

    def _forward(self, part: Completions) -> LogProbs:
        with_entropy = self.objective.entropy_coef > 0
        return logprobs(self.policy, part, self.config.rollout.temperature, with_entropy=with_entropy)

    def _totals(
        self, experience: Experience, batch: Completions, rows: list[int], parts: list[tuple[Completions, Tensor]]
    ) -> Totals | None:
        """Sums over the minibatch. An objective that estimates its band from the data needs all of them before the
        first micro-batch is differentiated: where there are several, that takes a forward pass of its own."""
        if len(parts) == 1:
            return None
        old = experience.old
        if not self.objective.estimates or old is None or not old.any_known(rows):
            zeros = (0.0, 0.0, 0.0)  # on-policy, or not looked at
            return Totals(len(rows), batch.tokens, *zeros)
        now = policy_logprobs(self.policy, batch, self.config.rollout.temperature, self.config.update.token_budget)
        return Totals.of(now, old.at(rows, now.shape[1]), ~torch.isnan(now))


def _kl(out: LogProbs, old: Tensor) -> Tensor:
    """Sum over tokens of the low-variance estimate of KL(old || new)."""
    return low_variance_kl(masked(out.logprobs.detach() - old, out.mask)).sum()
