"""What an audit cannot tell or has left out, in words."""

from __future__ import annotations

from collections.abc import Iterator

from fspo.audits.gather import Pass
from fspo.audits.reading.sample import Array
from fspo.audits.sampled_rows import SampledRows


def missing(found: Pass, sampled: SampledRows, off_policy: int, clippable: int, wild: Array) -> Iterator[str]:
    """Sentences about what the rows lack; `off_policy` rows are so, and clipping can act on `clippable` of them."""
    with_gradient = bool(found.all.table()["with_gradient"].any())
    if found.empty:
        yield f"{found.empty:,} empty answers were left out."
    if found.unscored:
        yield f"{found.unscored:,} answers have no reward and are in no mean reward."
    if not found.has("log_ratio") and "log_ratio" in found.roles:
        name = found.roles.columns["log_ratio"]
        yield (
            f"The column {name!r} is empty, so clipping cannot be audited. A run of fspo "
            "leaves it empty where the advantage is 0: rewards that differ within groups of answers give "
            "advantages, and update.all_rows=true computes the others too."
        )
        return
    if not found.has("log_ratio"):
        yield (
            "There are no log-ratios, so clipping cannot be audited: log the sum of log pi - log pi_old of each "
            "answer (the TRL and verl adapters of fspo write it), or per-token logprobs and old_logprobs."
        )
        return
    if not off_policy and not with_gradient:
        yield (
            "Every log-ratio and every advantage is 0: no answer has a gradient, so the policy does not move and "
            "clipping cannot act. Rewards that differ within groups of answers give advantages."
        )
        return
    if not off_policy:
        yield (
            "Every log-ratio is 0: all updates are on-policy, so clipping cannot act. Clipping needs more than one "
            "optimiser step per rollout."
        )
        return
    if found.on_policy.rows:
        yield f"{found.on_policy.rows:,} on-policy rows (log-ratio 0) are left out: they cannot clip."
    if not clippable:
        yield (
            "Every advantage is exactly 0: no answer has a gradient, so there is nothing for clipping to remove. "
            "Rewards that differ within groups of answers give advantages."
        )
        return
    if (without := off_policy - clippable - found.no_advantage) > 0:
        yield f"{without:,} rows have advantage 0 and no gradient to clip: they are left out of clip rates."
    if sampled.accepted is None:
        yield (
            "No column says what was accepted: name it with --accepted, or the run's rule with --rule, to see the "
            "run's own clip rate."
        )
    if not found.has("advantage"):
        yield (
            "There are no advantages: a method counts as clipping on either side of its range, and gradient shares "
            "are not known."
        )
    yield from sampled.notes(wild)
    if found.sample.stride > 1:
        yield f"Methods, shape, ESS, gradient shares and drift are from a random 1 in {found.sample.stride} rows."
