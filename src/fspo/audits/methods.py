"""The objectives of the library as rules on audited responses: at one clip rate, or one as the run's own rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fspo import objectives
from fspo.audits.columns import Array
from fspo.fairness import FairnessReport
from fspo.objectives import Objective, Responses

Report = Callable[[Array], FairnessReport]
"""What a rule accepts of each response -> the report of its clipping."""


@dataclass(frozen=True)
class Rule:
    """A rule and what it clips."""

    name: str
    report: FairnessReport


@dataclass(frozen=True)
class Comparison:
    """A method at the common clip rate: its range and its report, or a note why it has none."""

    name: str
    parameters: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    report: FairnessReport | None = None


def compare(
    responses: Responses, clip_rate: float, report: Report, own: Objective | None, names: Sequence[str] | None
) -> list[Comparison]:
    """Objectives with the range that clips this share of the responses that have a gradient.

    `names` are those to compare, default all; then `own`, the run's own rule, is compared too if it has no name.
    """
    compared = []
    for name in objectives.names() if names is None else names:
        try:
            objective = objectives.get(name)
        except ValueError as error:  # of another package: broken, or with a parameter that has no default
            compared.append(Comparison(name, note=str(error)))
        else:
            compared.append(_at_rate(name, objective, responses, clip_rate, report))
    if names is None and own is not None and not _is_known(own):
        name = f"{type(own).__module__}:{type(own).__qualname__}"
        compared.append(_at_rate(name, own, responses, clip_rate, report))
    return compared


def _is_known(objective: Objective) -> bool:
    return objective.name in objectives.names() and type(objective) is objectives.get_class(objective.name)


def _at_rate(name: str, objective: Objective, responses: Responses, clip_rate: float, report: Report) -> Comparison:
    try:
        with np.errstate(over="ignore"):
            ranged = objective.at_clip_rate(responses, clip_rate)
    except OverflowError:
        return Comparison(name, note="the log-ratios are so large that its range would be infinite")
    except Exception as error:
        if not objectives.is_foreign(objective):
            raise
        return Comparison(name, note=f"its range could not be found ({type(error).__name__}: {error})")
    if ranged.objective is None or ranged.accepted is None:
        return Comparison(name, note=ranged.note)
    return Comparison(name, ranged.objective.clip_parameters, report=report(ranged.accepted))


def parse_rule(text: str) -> Objective:
    """The objective of `name` or `name:parameter=value,...`; the name may be `module:Class`."""
    name, _, settings = text.rpartition(":")
    if "=" not in settings and not objectives.known(name):  # no parameters: all of the text is the name
        name, settings = text, ""
    parameters: dict[str, Any] = {}
    for part in filter(None, settings.split(",")):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise ValueError(f"--rule {text!r}: {part!r} is not of the form parameter=value")
        parameters[key] = _value(value)
    return objectives.get(name.strip(), **parameters)


def _value(text: str) -> float | str | None:
    if text == "null":
        return None
    try:
        return float(text)
    except ValueError:
        return text
