"""The band for a wanted clip rate, and the settings that give it to each trainer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fspo.fairness import ScalingLaw

if TYPE_CHECKING:
    from fspo.objectives import Responses

NEAR_HALF = 0.02  # an H closer to 1/2 than this is left at 1/2


@dataclass(frozen=True)
class Recommendation:
    """The band mu L - c_low L^H .. mu L + c_high L^H, and the settings to paste."""

    clip_rate: float  # share of the gradients that are clipped away
    outside: float  # share outside the band on either side: what the setting clip_rate of fspo counts
    mu: float
    c_low: float
    c_high: float
    exponent: float
    snippets: dict[str, str]


def recommend(responses: Responses, law: ScalingLaw | None, clip_rate: float) -> Recommendation | None:
    """The band that clips `clip_rate` of the gradients, half of it on each side, by quantiles of z; None if none does.

    With advantages, only those that clipping acts on count: A > 0 above, A < 0 below. The exponent is 1/2 unless the
    interval of H lies clear of it.
    """
    H = 0.5
    if law is not None and (law.interval[0] > 0.5 + NEAR_HALF or law.interval[1] < 0.5 - NEAR_HALF):
        H = round(law.exponent, 3)
    mu, sign = responses.mu, responses.sign
    z = (responses.log_ratio - mu * responses.lengths) / responses.lengths**H
    wanted = clip_rate / 2 * int(responses.has_gradient.sum())
    widths = []
    for side in (-1, 1):
        tail = np.sort(side * (z[sign == side] if sign.any() else z))
        place = len(tail) - 1 - round(wanted)
        if place < 0 or tail[place] < 0:
            return None
        widths.append(float(f"{tail[place]:.4g}"))
    c_low, c_high = widths
    outside = float(np.mean((z < -c_low) | (z > c_high)))
    return Recommendation(clip_rate, outside, mu, c_low, c_high, H, snippets(mu, c_low, c_high, H))


def snippets(mu: float, c_low: float, c_high: float, exponent: float) -> dict[str, str]:
    """The band as settings of each trainer. The drift is given as a number: c was measured around it."""
    values = {"c_low": c_low, "c_high": c_high, "drift": mu} | ({"exponent": exponent} if exponent != 0.5 else {})
    arguments = ", ".join(f'"{key}": {value:g}' for key, value in values.items())
    loss = "actor_rollout_ref.actor.policy_loss"
    verl = [f"{loss}._target_=fspo.engines.verl.PolicyLoss", f"{loss}.loss_mode=fspo"]
    verl += [f"+{loss}.objective.{key}={value:g}" for key, value in values.items()]
    ours = ["objective.name=fspo", *(f"objective.{key}={value:g}" for key, value in values.items())]
    return {
        "fspo": " ".join(ours),
        "TRL": f'FSPOConfig(objective="fspo", objective_args={{{arguments}}})',
        "verl": " ".join(verl),
    }
