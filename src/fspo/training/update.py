"""The optimiser steps on one rollout: minibatches of whole groups, micro-batches by token budget, exact totals.

The old log-probs come from the forward pass for training (`model/forward.py` says why). The first update on a fresh
rollout is on-policy (staleness 0): its own forward pass gives its old log-probs. `NormLimit` limits the gradient norm.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fspo import ratios
from fspo.config import TrainConfig, UpdateConfig
from fspo.fairness import measure_cosine
from fspo.fairness.bins import cut
from fspo.model.answers import Answers, split
from fspo.model.forward import LogProbs, logprobs, require_family
from fspo.model.loading import Policy
from fspo.objectives import Objective, Totals
from fspo.objectives.batch import Batch
from fspo.objectives.objective import Output
from fspo.objectives.primitives import capped_ratio, low_variance_kl
from fspo.ratios import Floats
from fspo.runs import Cosine
from fspo.runs.recorder import OF_A_RESPONSE, Update, mismatch, response_rows
from fspo.training.collect import combined_seed
from fspo.training.processes import Team

WINDOW = 64  # updates that the median of gradient norms is taken over


class Learner:
    """Moves a policy along an objective. The rows of a minibatch are shared among the processes of a team."""

    def __init__(self, policy: Policy, objective: Objective, config: TrainConfig, team: Team | None = None) -> None:
        settings = config.update
        require_family(policy)
        self.policy, self.objective, self.config, self.team = policy, objective, config, team or Team()
        self.parameters = policy.trainable()
        self.norm_limit = NormLimit(settings)
        fused = policy.device.type in ("cpu", "cuda")
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay, fused=fused
        )

    def learn(self, answers: Answers, step: int) -> list[Update]:
        """All epochs and minibatches of a step."""
        settings = self.config.update
        lr = self.learning_rate(step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        members = answers.members
        updates: list[Update] = []
        every = self.config.log.cosine
        late = self.config.rollout.staleness  # in rollouts; smaller during the first steps
        behind = max(0, min(late, step - 1 - late)) * settings.epochs * settings.minibatches
        for epoch in range(settings.epochs):
            minibatches = group_order(len(answers.prompts), settings.minibatches, (self.config.seed, step, epoch))
            if answers.old is None:
                # The forward pass that trains the first minibatch also gives its old log-probs.
                later = [i for groups in minibatches[1:] for g in groups for i in members[g]]
                self.take_old(answers, self._needed(answers, later))
            for groups in minibatches:
                rows = [i for g in groups for i in members[g]]
                last = epoch == settings.epochs - 1 and groups is minibatches[-1]
                compare = step if last and every and step % every == 0 else None
                updates.append(self._update(answers, rows, len(updates), behind + len(updates), compare))
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

    def take_old(self, answers: Answers, rows: Sequence[int]) -> None:
        """Compute the old log-probs of these rows, before the policy moves; those of the others stay 0."""
        answers.old = self.parameters[0].detach().new_zeros(len(answers), max(answers.lengths))
        if rows:
            values = self.logprobs(self.policy, answers.select(rows))
            answers.old[list(rows), : values.shape[1]] = values

    def entropy(self, answers: Answers) -> float:
        """Mean of -log pi_old over the sampled tokens of the rows that were run forward: an unbiased estimate."""
        assert answers.old is not None
        rows = list(range(len(answers)))
        lengths = [answers.lengths[i] for i in (rows if self.config.rollout.staleness else self._needed(answers, rows))]
        return float(-(answers.old.sum() / sum(lengths))) if lengths else math.nan

    def logprobs(self, policy: Policy, answers: Answers) -> Tensor:
        """(N, T) log-probs under a policy, each process of the team computing its share."""
        own = self.team.share(answers.lengths)
        temperature, budget = self.config.rollout.temperature, self.config.update.token_budget
        mine = policy_logprobs(policy, answers.select(own), temperature, budget) if own else None
        if self.team.size == 1 and mine is not None:
            return mine
        parts = [part for part in self.team.gather(None if mine is None else mine.cpu()) if part is not None]
        width = max(answers.lengths)
        padded = [torch.nn.functional.pad(part, (0, width - part.shape[1])) for part in parts]
        return torch.cat(padded).to(policy.device)

    def _needed(self, answers: Answers, rows: list[int]) -> list[int]:
        """Rows to run forward: all, or only rows with nonzero advantage."""
        if self.config.update.all_rows or self.objective.needs_all_rows:
            return rows
        return [i for i in rows if ratios.has_gradient(answers.advantages[i])]

    def _gives_old(self, staleness: int) -> bool:
        """Whether the forward of an update gives the old log-probs of its rows; stale rollouts have them already."""
        return staleness == 0 and not self.config.rollout.staleness

    def _update(self, answers: Answers, rows: list[int], update: int, staleness: int, compare: int | None) -> Update:
        """One optimiser step, the same in every process; `compare` is the step whose last update also measures the
        direction of its first micro-batch."""
        assert answers.old is not None
        computed = self._needed(answers, rows)
        lengths = np.array(answers.lengths, dtype=np.float64)
        own = [computed[i] for i in self.team.share(lengths[computed].tolist())]
        self.optimizer.zero_grad(set_to_none=True)
        measured = (compare, update) if compare is not None and self.team.is_main else None
        mine = self._differentiate(answers, own, rows, len(computed), lengths, staleness, measured)
        if self._gives_old(staleness):
            mine.old = answers.old[own].cpu()
        parts = self.team.gather(mine)
        if self._gives_old(staleness) and self.team.size > 1:
            answers.old[computed] = torch.cat([part.old for part in parts if part.old is not None]).to(answers.old)
        names = (*OF_A_RESPONSE, "answer")
        known = {name: [value for part in parts for each in part.rows for value in each[name]] for name in names}
        loss = sum(part.loss for part in parts)
        healthy = all(part.healthy for part in parts)
        if self._gives_old(staleness) and not healthy:
            answers.old[computed] = math.nan  # so that the later updates on these rows are skipped too
        if computed:
            self.team.sum_gradients(self.parameters)
        else:  # the optimiser's momentum moves the weights all the same
            for weight in self.parameters:
                weight.grad = torch.zeros_like(weight)
        norm, shortened = self.norm_limit.apply(self.parameters) if healthy else (math.nan, False)
        healthy = healthy and math.isfinite(norm) and math.isfinite(loss)
        metrics = {key: sum(part.metrics.get(key, 0.0) for part in parts) for part in parts for key in part.metrics}
        metrics |= {"loss": loss, "grad_norm": norm, "norm_clipped": float(shortened)}
        metrics |= mismatch(known, self.config.log.bins)
        if computed:
            metrics["kl"] = sum(part.kl for part in parts) / float(lengths[computed].sum())
        columns = _columns(answers, rows, known)
        done = Update(update, staleness, columns, metrics, skipped=not healthy, cosine=mine.cosine, members=rows)
        if healthy:
            self.optimizer.step()
            S, L, A = (torch.from_numpy(x) for x in (done.log_ratio, done.lengths, done.advantages))
            self.objective.observe(S, L, A, staleness)
        return done

    def _differentiate(
        self, answers: Answers, own: list[int], rows: list[int], computed: int, lengths: Floats, staleness: int,
        compare: tuple[int, int] | None,
    ) -> _Part:  # fmt: skip
        """Add up the gradients of this process's rows `own`, micro-batch by micro-batch; `rows` are the minibatch's,
        of which all processes together compute `computed`. `compare` is the step and update to measure."""
        part = _Part()
        assert answers.old is not None
        advantages = torch.tensor(answers.advantages, dtype=torch.float64)[own]
        micro = split(answers.select(own), self.config.update.token_budget) if own else []
        totals, out = Totals(len(rows), float(lengths[rows].sum()), 0.0), None
        if self.objective.estimates and staleness > 0:
            totals, out = self._estimated(answers, own, micro)
        if math.isnan(totals.log_ratio):
            part.healthy = False
            return part
        for k, (batch, indices) in enumerate(micro):
            out = self._forward(batch) if k or out is None else out
            chosen = [own[i] for i in indices.tolist()]
            width = out.mask.shape[1]
            if self._gives_old(staleness):
                answers.old[chosen, :width] = out.logprobs.detach()
            old = answers.old[chosen, :width]
            if not torch.isfinite(out.logprobs.detach().sum() - old.sum()):
                part.healthy = False
                break
            options: dict[str, Any] = {"entropy": out.entropy}
            if answers.reference is not None:
                options["ref_logprobs"] = answers.reference[chosen, :width]
            if answers.sampler_logprobs:
                options["sampler_logprobs"] = _padded([answers.sampler_logprobs[i] for i in chosen], out.logprobs)
            inputs = (out.logprobs, old, advantages[indices].to(out.logprobs), out.mask)
            if compare is not None and k == 0:
                bins = self.config.log.bins
                part.cosine = measure_direction(
                    self.objective, inputs, totals, staleness, self.parameters, bins, compare
                )
            result = self.objective(*inputs, totals=totals, staleness=staleness, **options)
            result.loss.backward()
            checked = Batch.check(out.logprobs.detach(), *inputs[1:])
            part.kl += float(low_variance_kl(checked.token_log_ratio).sum())
            sampler = options.get("sampler_logprobs")
            part.rows.append(response_rows(checked, result.accepted, sampler, self.objective, {"answer": chosen}))
            part.add(result, len(indices) / computed)
        return part

    def _forward(self, batch: Answers) -> LogProbs:
        with_entropy = self.objective.entropy_coef > 0
        return logprobs(self.policy, batch, self.config.rollout.temperature, with_entropy=with_entropy)

    def _estimated(
        self, answers: Answers, own: list[int], micro: list[tuple[Answers, Tensor]]
    ) -> tuple[Totals, LogProbs | None]:
        """Sums over the minibatch for an objective that estimates its band from the data, which it needs before the
        first micro-batch is differentiated. With one micro-batch they come from its forward pass, which is returned for
        reuse; with several, from a separate pass. NaN where log-probs are not finite."""
        sums, out, now = [0.0] * len(Totals(0, 0).vector()), None, None
        if len(micro) == 1:
            out = self._forward(micro[0][0])
            own = [own[i] for i in micro[0][1].tolist()]
            now = out.logprobs.detach()
        elif micro:
            budget = self.config.update.token_budget
            now = policy_logprobs(self.policy, answers.select(own), self.config.rollout.temperature, budget)
        if now is not None:
            assert answers.old is not None
            old, lengths = answers.old[own, : now.shape[1]], torch.tensor(answers.lengths, device=now.device)[own]
            mask = torch.arange(now.shape[1], device=now.device) < lengths.unsqueeze(1)
            finite = torch.isfinite(now[mask]).all()
            sums = Totals.of(now, old, mask).vector() if finite else [math.nan] * len(sums)
        return Totals.from_vector(self.team.total(sums)), out


def group_order(groups: int, parts: int, seed: Sequence[int]) -> list[list[int]]:
    """Whole groups divided into `parts` minibatches at random; the same seed gives the same order."""
    generator = torch.Generator().manual_seed(combined_seed(*seed))
    order = torch.randperm(groups, generator=generator)
    return [part.tolist() for part in torch.tensor_split(order, min(parts, groups))]


@torch.no_grad()
def policy_logprobs(policy: Policy, answers: Answers, temperature: float, token_budget: int) -> Tensor:
    """(N, T) log-probs of answers under a policy, micro-batch by micro-batch; 0 where there is no token."""
    result: Tensor | None = None
    for part, indices in split(answers, token_budget):
        values = logprobs(policy, part, temperature).logprobs
        if result is None:
            result = values.new_zeros(len(answers), max(answers.lengths))
        result[indices.to(result.device), : values.shape[1]] = values
    assert result is not None
    return result


@dataclass
class _Part:
    """The results of one process for its rows of a minibatch."""

    healthy: bool = True
    loss: float = 0.0
    kl: float = 0.0  # sum over tokens of the low-variance estimate of KL(old || new)
    metrics: dict[str, float] = field(default_factory=dict)
    rows: list[dict[str, list[Any]]] = field(default_factory=list)  # of each micro-batch, with the indices of answers
    cosine: Cosine | None = None
    old: Tensor | None = None  # log-probs of its rows at the first update, for the other processes

    def add(self, result: Output, share: float) -> None:
        """The result of a micro-batch; `share` is the fraction of the minibatch's computed rows that it holds."""
        for key, value in result.metrics.items():
            self.metrics[key] = self.metrics.get(key, 0.0) + share * value
        self.loss += float(result.loss.detach())


def _columns(answers: Answers, rows: list[int], known: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """One row per response of a minibatch, by column, see `fspo.runs.rows`; `known` of those that were computed."""
    lengths, examples = answers.lengths, [answers.examples[answers.group[i]] for i in rows]
    at = {i: k for k, i in enumerate(known["answer"])}
    computed = ("log_ratio", "accepted", "mismatch")
    return {
        **{name: [e[name] for e in examples] for name in ("index", "task", "difficulty", "attributes")},
        "length": [lengths[i] for i in rows],
        "truncated": [not answers.finished[i] for i in rows],
        "reward": [answers.rewards[i] for i in rows],
        "advantage": [answers.advantages[i] for i in rows],
        **{name: [known[name][at[i]] if i in at else None for i in rows] for name in computed},
    }


def _padded(rows: list[list[float]], like: Tensor) -> Tensor:
    """(N, T) of rows of different lengths, 0 where there is no token."""
    table = torch.zeros_like(like)
    for i, row in enumerate(rows):
        table[i, : len(row)] = torch.tensor(row)
    return table


class NormLimit:
    """The limit on the gradient norm: a fixed number, a multiple of the median norm of the last updates, which does not
    depend on the objective's scale, or both."""

    def __init__(self, settings: UpdateConfig) -> None:
        self.fixed, self.ratio = settings.clip_norm, settings.clip_ratio
        self.norms: deque[float] = deque(maxlen=WINDOW)

    @property
    def largest(self) -> float:
        """The largest norm that the next update may have."""
        fixed = math.inf if self.fixed is None else self.fixed
        usual = math.inf if self.ratio is None or not self.norms else self.ratio * median(self.norms)
        return min(fixed, usual)

    def apply(self, weights: Sequence[Tensor]) -> tuple[float, bool]:
        """Shorten the gradient of `weights` to the limit; returns its norm before, and whether it was above.

        Norms that are zero (a batch without a gradient) or not finite do not enter the median.
        """
        largest = self.largest
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients))
        if largest < norm < math.inf:
            torch._foreach_mul_(gradients, largest / norm)
        if math.isfinite(norm) and norm > 0:
            self.norms.append(norm)
        return norm, norm > largest


# --- the direction of an update ---------------------------------------------------------------------------------------
#
# How far clipping turns an update: the cosine between the objective's own update and the true one, the gradient of
# exp(S) A summed over responses. Where a method's update is another one even without clipping (GRPO divides by L, GSPO
# takes exp(S / L)), the cosine shows that too. Penalties are in neither.


def measure_direction(
    objective: Objective,
    inputs: tuple[Tensor, Tensor, Tensor, Tensor],
    totals: Totals | None,
    staleness: int,
    parameters: Iterable[Tensor],
    bins: int,
    at: tuple[int, int] = (0, 0),
) -> Cosine | None:
    """Cosine and bounds by quantile bins of length, of the step and update `at`; None where either is zero.

    `inputs` are what the objective is called with, before its backward pass; their graph is kept, and no gradient is
    left in the parameters. Takes two backward passes per bin.
    """
    batch = Batch.check(*inputs, totals, staleness)
    clipped, accepted = objective.per_response(batch)
    true = capped_ratio(batch.log_ratio, objective.exponent_cap)[0] * batch.row_advantages
    g, h = (torch.autograd.grad(v.sum(), batch.logprobs, retain_graph=True)[0].cpu().double() for v in (true, clipped))
    # Rescale by the least-squares factor; the bound is not scale-invariant.
    scale = float((accepted.cpu().double().unsqueeze(-1) * g * h).sum() / h.square().sum()) if h.any() else 0.0
    if not scale:
        return None
    index = torch.as_tensor(cut(batch.lengths.cpu().double().numpy(), bins).index, device=accepted.device)
    cosine = measure_cosine(true, scale * clipped, accepted.clamp(0, 1), index, parameters)
    return Cosine(
        step=at[0], update=at[1], measured=cosine.measured, bound=float(cosine.bound), bound_tight=float(cosine.tight)
    )
