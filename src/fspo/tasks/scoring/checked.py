"""The value of a reward, checked: any kind of real number, finite, and small enough for the trainer."""

import math
import numbers
import traceback
from decimal import Decimal
from typing import Any

from fspo.tasks.task import Example, Task

LARGEST = 1e18  # differences and squares of rewards then fit a float32, in which gradients are computed


def checked(task: Task, example: Example, completion: str) -> tuple[float | None, str | None, str]:
    """A score, or the kind of failure and its message; an exception of the reward is not raised."""
    try:
        value: Any = task.score(example, completion)
        number = _number(value)
        if number is None:
            return None, "error", f"the reward returned {_shown(value)}, which is not a number"
        if not math.isfinite(number):
            return None, "error", f"the reward returned {_shown(value)}, which is not finite"
        if abs(number) > LARGEST:
            return None, "error", f"the reward returned {_shown(value)}, which is beyond {LARGEST:g}: scale it down"
        return number, None, ""
    except MemoryError:
        raise
    except Exception as error:
        return None, "error", message(error)


def message(error: BaseException) -> str:
    """The class and text of an exception."""
    return "".join(traceback.format_exception_only(error)).strip()[-500:]


def _number(value: Any) -> float | None:
    """A number of Python, numpy or torch as a float, also as an array without dimensions; None if it is none."""
    if getattr(value, "shape", None) == () and callable(getattr(value, "item", None)):
        value = value.item()
    return float(value) if isinstance(value, numbers.Real | Decimal) else None


def _shown(value: Any) -> str:
    return f"{type(value).__name__} {value!r:.100}"
