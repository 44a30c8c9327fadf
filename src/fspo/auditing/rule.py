"""The run's own rule where the file does not say what was accepted: an objective of the library by name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from fspo import objectives
from fspo.auditing.methods import TOKEN_RULES, Answers
from fspo.auditing.sample import Array
from fspo.objectives.batch import Batch
from fspo.objectives.primitives import low_variance_kl

CHUNK = 1 << 20  # positions, padding counted, of a batch of token log-ratios


def parse(text: str) -> objectives.Objective:
    """`name` or `name:parameter=value,...`."""
    name, _, rest = text.partition(":")
    parameters: dict[str, float | str] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"--rule {text!r}: {part!r} is not of the form parameter=value")
        try:
            parameters[key.strip()] = float(value)
        except ValueError:
            parameters[key.strip()] = value.strip()
    return objectives.get(name.strip(), **parameters)


def accepted(rule: objectives.Objective, answers: Answers) -> Array:
    """What the rule accepts of each answer; where advantages are not known, what it accepts for either sign."""
    if rule.name == "gspo_token":  # GSPO's clip, with token gradients
        rule = objectives.get("gspo", clip_low=rule.clip_low, clip_high=rule.clip_high)  # type: ignore[attr-defined]
    by_tokens = isinstance(rule, TOKEN_RULES) or rule.name in ("fspo_studentized", "cispo", "sapo")
    if answers.tokens is None and by_tokens:
        raise ValueError(f"the rule {rule.name} looks at tokens: give per-token log-probs (--logprobs, --old-logprobs)")
    if not answers.sign.any():
        parts = [_accepted(rule, replace(answers, sign=np.full_like(answers.sign, s)), by_tokens) for s in (1, -1)]
        return np.minimum(*parts)
    return _accepted(rule, answers, by_tokens)


def _accepted(rule: objectives.Objective, a: Answers, by_tokens: bool) -> Array:
    S, L, sign = (torch.from_numpy(np.asarray(v, np.float64)) for v in (a.log_ratio, a.lengths, a.sign))
    l = torch.from_numpy(a.tokens) if a.tokens is not None else None
    kl = float(low_variance_kl(l).sum()) if l is not None else float("nan")
    totals = objectives.Totals(len(S), float(L.sum()), float(S.sum()), float((S * S / L).sum()), kl)
    if not by_tokens or l is None:
        column, mask = S.unsqueeze(-1), torch.ones(len(S), 1, dtype=torch.bool)
        return rule.surrogate(Batch(column, column, S, L, sign, mask, totals, 0)).accepted.double().numpy()
    result = np.empty(len(S))
    starts, order = a.starts, np.argsort(a.lengths, kind="stable")
    first = 0
    while first < len(order):  # answers of like length together, so that little is padding
        rows = order[first : first + max(1, CHUNK // int(a.lengths[order[first]]))]
        rows = rows[: max(1, CHUNK // int(a.lengths[rows[-1]]))]
        positions = np.arange(int(a.lengths[rows[-1]]))
        mask = torch.from_numpy(positions[None] < a.lengths[rows, None])
        index = np.minimum(starts[rows, None] + positions[None], len(l) - 1)
        tokens = torch.where(mask, l[torch.from_numpy(index)], 0.0)
        batch = Batch(tokens, tokens, S[rows], L[rows], sign[rows], mask, totals, 0)
        result[rows] = rule.surrogate(batch).accepted.double().numpy()
        first += len(rows)
    return result
