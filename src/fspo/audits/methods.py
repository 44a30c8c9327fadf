"""The objectives of the library as rules on audited responses: all at one clip rate, or one as the run's own rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fspo import objectives
from fspo.audits.findings import Comparison
from fspo.audits.reading.sample import Array
from fspo.fairness import FairnessReport
from fspo.objectives import Objective, Responses


def compare(
    responses: Responses, clip_rate: float, report: Callable[[Array], FairnessReport], own: Objective | None = None
) -> list[Comparison]:
    """Every known objective with the range that clips this share of the responses that have a gradient.

    `own` is the run's own rule, which is compared too where it has no name among the known ones. `report` turns what an
    objective accepts of each response into the report of its clipping.
    """
    found = [_by_name(name, responses, clip_rate, report) for name in objectives.names()]
    if own is not None and not _is_known(own):
        name = f"{type(own).__module__}:{type(own).__qualname__}"
        found.append(_at_rate(name, own, responses, clip_rate, report))
    return found


def _is_known(objective: Objective) -> bool:
    return objective.name in objectives.names() and type(objective) is objectives.get_class(objective.name)


def _by_name(
    name: str, responses: Responses, clip_rate: float, report: Callable[[Array], FairnessReport]
) -> Comparison:
    try:
        objective = objectives.get(name)
    except ValueError as error:  # of another package: broken, or with a parameter that has no default
        return Comparison(name, note=str(error))
    return _at_rate(name, objective, responses, clip_rate, report)


def _at_rate(
    name: str,
    objective: Objective,
    responses: Responses,
    clip_rate: float,
    report: Callable[[Array], FairnessReport],
) -> Comparison:
    try:
        with np.errstate(over="ignore"):
            found = objective.at_clip_rate(responses, clip_rate)
    except OverflowError:
        return Comparison(name, note="the log-ratios are so large that its range would be infinite")
    except Exception as error:
        if not objectives.is_foreign(objective):
            raise
        return Comparison(name, note=f"its range could not be found ({type(error).__name__}: {error})")
    if found.objective is None or found.accepted is None:
        return Comparison(name, note=found.note)
    return Comparison(name, found.objective.clip_parameters, report=report(found.accepted))


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
