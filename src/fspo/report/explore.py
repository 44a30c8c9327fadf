"""`fspo explore`: a page with sliders that shows what each method clips by length, for S ~ Normal(mu L, sigma^2 L).

The rules are the objectives of the three length laws: each gives its band at its default parameters on a grid of
lengths, and the page interpolates between them. A slider multiplies the width.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fspo import objectives
from fspo.files import plain, replace_file
from fspo.objectives import Objective, Totals
from fspo.pages import document
from fspo.ratios import Floats

__all__ = ["length_band", "render", "write"]

LENGTHS = 2.0 ** np.arange(0, 20.25, 0.25)  # the page's answers have up to about 150,000 tokens
FACTORS = 10.0 ** np.arange(-2, 2.01, 0.025)  # of the width, over the range of the sliders
ANY_TOTALS = Totals(1, 1, -2e-4)  # the bands that are shown do not depend on the batch


def write(path: str | Path) -> Path:
    """Write the explorer, a self-contained page, and return its path."""
    return replace_file(path, render())


def render() -> str:
    """The page as text."""
    rules = [_rule(objectives.get(name)) for name in objectives.LENGTH_LAWS]
    centred = rules[0] | {"name": f"{rules[0]['name']} around the drift", "centred": True}  # the first is FSPO's
    rules = [centred, rules[0] | {"dashed": True}, *rules[1:]]
    data = plain({"lengths": LENGTHS.tolist(), "factors": FACTORS.tolist(), "rules": rules})
    return document.document(
        title="What a clip range does to long and short answers – fspo",
        heading="What a clip range does to long and short answers",
        lead="Sequence-level reinforcement learning weighs an answer of L tokens by exp(S), the ratio of the new "
        "policy's probability to the old one's, and clips it. S is a sum of L small terms: near Normal(μL, σ²L). Move "
        "the sliders and see which lengths each rule clips.",
        main=document.render("explore.html", rules=[rule for rule in rules if not rule["centred"]], data=data),
        footer="Written by fspo. Formulas: docs/method.md.",
        scripts=["explore_rates.js", "explore.js"],
    )


def _rule(objective: Objective) -> dict[str, Any]:
    """The band of an objective, and its parameters at each width of the slider."""
    band = length_band(objective, LENGTHS, ANY_TOTALS)
    assert band is not None
    centre, below, above = (values.tolist() for values in band)
    return {
        "key": objective.name, "name": objective.name, "summary": objective.summary, "colour": objective.colour,
        "dashed": False, "centred": False, "centre": centre, "below": below, "above": above,
        "parameters": _widened(objective),
    }  # fmt: skip


def length_band(objective: Objective, lengths: Floats, totals: Totals) -> tuple[Floats, Floats, Floats] | None:
    """Centre, width below and width above of S by length; None where the band does not depend on the length alone."""
    if objective.clips_tokens or objective.needs_tokens:
        return None
    try:
        band = objective.band(lengths, totals)
    except Exception:  # an error in another package's objective must not stop the page
        if not objectives.is_foreign(objective):
            raise
        return None
    if band is None:
        return None
    centre, below, above = (np.broadcast_to(np.asarray(v, np.float64), lengths.shape) for v in band[:3])
    return centre, below, above


def _widened(objective: Objective) -> dict[str, list[float]]:
    """The parameters that change with the width, at each of FACTORS."""
    scaled = [objective.scaled(float(k)) for k in FACTORS]
    tables = [each.clip_parameters for each in scaled if each is not None]
    names = [name for name, value in tables[0].items() if isinstance(value, float) and value != tables[-1][name]]
    return {name: [float(f"{table[name]:.6g}") for table in tables] for name in names}
