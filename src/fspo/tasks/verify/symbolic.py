"""Expressions compared by math-verify, which uses sympy, within limits that are checked before anything is parsed."""

import contextlib
import logging
import re
import signal
import threading
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from fspo.tasks.verify.spelling import DEEPEST

__all__ = ["equivalent", "near", "readable"]

LONGEST_EXPRESSION = 400
SECONDS = 2.0  # of processor time for one comparison
LARGEST_POWER = 20_000  # of a number: sympy computes powers to the last digit

_COMMANDS = frozenset(
    re.findall(
        r"\S+",
        "frac sqrt pi infty pm mp cdot times div sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln "
        "exp lg binom choose le ge neq in notin cup cap setminus emptyset varnothing approx equiv pmod bmod mod begin "
        "end theta alpha beta gamma delta epsilon lambda mu nu omega phi psi rho sigma tau varphi zeta eta xi chi "
        "kappa Gamma Delta Omega Phi Theta Lambda Sigma Pi mathbb mathbf vec overline bar hat lfloor rfloor lceil "
        "rceil to Rightarrow land lor wedge vee ldots dots cdots max min gcd lcm deg det vert "
        "lvert rvert mid angle triangle overrightarrow prime circ forall exists",
    )
)
_COMMAND = re.compile(r"\\([a-zA-Z]+)")
_WORDS = re.compile(r"[a-zA-Z]{4,}")
_DANGLING = re.compile(r"\\(?:times|cdot|div|pm|mp|frac|sqrt|le|ge|neq|in|cup|cap|to|log|ln)$")
_POWER = re.compile(r"(\S?) ?\^ ?(?:\{|(\d+|\S))")
_INTEGER_POWER = re.compile(r"(\d+) ?\^ ?\{? ?(\d+) ?\}?")
_FACTORIAL = re.compile(r"(?:(\d+)|\(([^()]*)\)|([^a-zA-Z ])) ?(?=!)")
_LETTER = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z](?![a-zA-Z])")
_HUGE = re.compile(r"\\binom ?\{[^{}]*(?:\d{5}|\^)|\^ ?(?:\w+|\{[^{}]*\}) ?\^")
_MATRIX = re.compile(r"(?:begin|end)\{[a-z]*matrix\}")
_STRANGE = re.compile(r"[^\w\s\\{}()\[\]|^+\-*/=<>.,;:!'&]|\d \d|\d\.\d*\.|\d{60}|[+*/^=]{3}|!{3}|[-+*/^=(,]$|--|\{\}")


def readable(text: str) -> bool:
    """Whether this may be mathematics: short, balanced, of known commands, without words. Takes linear time."""
    if not text or len(text) > LONGEST_EXPRESSION or not any(c.isalnum() for c in text):
        return False
    if _DANGLING.search(text) or any(name not in _COMMANDS for name in _COMMAND.findall(text)):
        return False
    bare = _COMMAND.sub(" | ", _MATRIX.sub(" ", text))  # a command separates: 3\\cdot5
    if _STRANGE.search(bare.strip()) or _WORDS.search(bare):
        return False
    depth = deepest = 0
    for character in text.replace("\\{", "").replace("\\}", ""):
        depth += (character == "{") - (character == "}")
        deepest = max(deepest, depth)
        if depth < 0:
            return False
    return depth == 0 and deepest <= DEEPEST and _affordable(text)


def _affordable(text: str) -> bool:
    """Whether sympy, which writes whole numbers out, can: not 9^{9^9}, (10^9)! or (2^{999})^{999}."""
    for digits, group, other in _FACTORIAL.findall(text):
        if other or len(digits) > 3 or (not digits and not _LETTER.search(group)):
            return False
    if _HUGE.search(text):
        return False
    largest = repeated = 1
    for found in _POWER.finditer(text):
        power = _product(found[2] if found[2] else _braced(text, found.end()))
        if found[1] in (")", "}", "]"):
            repeated *= power
        elif not found[1].isalpha():
            largest = max(largest, power)
        if largest * repeated > LARGEST_POWER:
            return False
    return True


def _braced(text: str, start: int) -> str:
    """What stands between the brace that was opened before `start` and its end."""
    depth = 1
    for end in range(start, len(text)):
        depth += (text[end] == "{") - (text[end] == "}")
        if depth == 0:
            return text[start:end]
    return text[start:]


def _product(exponent: str) -> int:
    """The product of the whole numbers in an exponent, none of which it can exceed by much."""
    if exponent.count("^") > 1:
        return LARGEST_POWER + 1
    size = 1
    for base, power in _INTEGER_POWER.findall(exponent):
        size *= int(base) ** int(power) if len(base) < 4 and len(power) < 3 else LARGEST_POWER + 1
    for digits in re.findall(r"\d+", _INTEGER_POWER.sub(" ", exponent)):
        size *= max(1, int(digits)) if len(digits) < 7 else LARGEST_POWER + 1
    return size


def equivalent(gold: str, given: str) -> bool:
    """Whether two tidy expressions have the same value.

    math-verify's own time limits turn every score into zero outside of a main thread. They are off here; what is not
    decided after `SECONDS` is not equal, so that no answer can choose to be unscored.
    """
    try:
        from math_verify import verify
    except ImportError:
        raise ValueError("question-answer tasks need the package math-verify: pip install 'fspo[tasks]'") from None
    wanted = _parsed_gold(gold)
    if not wanted:
        raise ValueError(f"math-verify cannot read the reference answer {gold!r}: correct that row")
    if not readable(given):
        return False
    try:
        with _limited():
            return bool(verify(wanted, _parsed(given), timeout_seconds=None, allow_set_relation_comp=True))
    except MemoryError:
        raise
    except (Exception, _TimeOverError):  # what sympy cannot handle is not the reference
        return False


class _TimeOverError(BaseException):
    """Not an `Exception`, which sympy and math-verify would catch."""


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Limit the processor time in a main thread, as that of a scoring process; the scorer limits it elsewhere."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise _TimeOverError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS, SECONDS / 4)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def near(first: str, second: str) -> bool:
    """Whether two expressions without names have nearly the same value, as what is rounded and the result."""
    values = []
    for text in (first, second):
        try:
            with _limited():
                found = _parsed(text) if readable(text) else []
                values.append(complex(found[0].evalf()))
        except MemoryError:
            raise
        except (Exception, _TimeOverError):  # an expression with names, or one that sympy cannot handle
            return False
    digits = len(second.partition(".")[2]) if re.fullmatch(r"-?[\d.]+", second) else 20
    return abs(values[0] - values[1]) <= max(0.05 * abs(values[0]), 0.5 * 10.0**-digits)


@lru_cache(maxsize=4096)
def _parsed_gold(text: str) -> list[Any]:
    return _parsed(text)


def _parsed(text: str) -> list[Any]:
    from math_verify import LatexExtractionConfig, parse

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    how = [LatexExtractionConfig()]  # the other kind would find the 5 in "5 -"
    found: list[Any] = parse(f"${text}$", extraction_config=how, parsing_timeout=None)
    return found
