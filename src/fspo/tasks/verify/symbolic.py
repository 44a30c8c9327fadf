"""Expressions compared by math-verify, which uses sympy, within limits that are checked before anything is parsed."""

import logging
import re
from functools import lru_cache
from typing import Any

from fspo.tasks.verify.spelling import DEEPEST

__all__ = ["equivalent", "readable"]

LONGEST_EXPRESSION = 400

_COMMANDS = frozenset(
    re.findall(
        r"\S+",
        "frac sqrt pi infty pm mp cdot times div sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln "
        "exp lg binom choose le ge neq in notin cup cap setminus emptyset varnothing approx equiv pmod bmod mod begin "
        "end theta alpha beta gamma delta epsilon lambda mu nu omega phi psi rho sigma tau varphi zeta eta xi chi "
        "kappa Gamma Delta Omega Phi Theta Lambda Sigma Pi mathbb mathbf vec overline bar hat lfloor rfloor lceil "
        "rceil sum prod int lim to Rightarrow land lor wedge vee ldots dots cdots max min gcd lcm deg det vert "
        "lvert rvert mid angle triangle overrightarrow prime circ forall exists",
    )
)
_COMMAND = re.compile(r"\\([a-zA-Z]+)")
_WORDS = re.compile(r"[a-zA-Z]{4,}")
_DANGLING = re.compile(r"\\(?:times|cdot|div|pm|mp|frac|sqrt|le|ge|neq|in|cup|cap|to|log|ln)$")
_MATRIX = re.compile(r"(?:begin|end)\{[a-z]*matrix\}")
_STRANGE = re.compile(r"[^\w\s\\{}()\[\]|^+\-*/=<>.,;:!'&]|\d \d|\d\.\d*\.|\d{60}|[+*/^=]{3}|!{3}|[-+*/^=(,]$|--|\{\}")


def readable(text: str) -> bool:
    """Whether this may be mathematics: short, balanced, of known commands, without words. Takes linear time."""
    if not text or len(text) > LONGEST_EXPRESSION or not any(c.isalnum() for c in text):
        return False
    if _DANGLING.search(text) or any(name not in _COMMANDS for name in _COMMAND.findall(text)):
        return False
    bare = _COMMAND.sub(" ", _MATRIX.sub(" ", text))
    if _STRANGE.search(bare.strip()) or _WORDS.search(bare):
        return False
    depth = deepest = 0
    for character in text.replace("\\{", "").replace("\\}", ""):
        depth += (character == "{") - (character == "}")
        deepest = max(deepest, depth)
        if depth < 0:
            return False
    return depth == 0 and deepest <= DEEPEST


def equivalent(gold: str, given: str) -> bool:
    """Whether two tidy expressions have the same value.

    math-verify's own time limits are signals, which work in a main thread only and turn every score into zero
    elsewhere. They are off here; the scorer limits the time.
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
        return bool(verify(wanted, _parsed(given), timeout_seconds=None, allow_set_relation_comp=True))
    except MemoryError:
        raise
    except Exception:  # what sympy cannot handle is not the reference; the answer must not choose to be unscored
        return False


@lru_cache(maxsize=4096)
def _parsed_gold(text: str) -> list[Any]:
    return _parsed(text)


def _parsed(text: str) -> list[Any]:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    how = [LatexExtractionConfig(), ExprExtractionConfig()]
    found: list[Any] = parse(f"${text}$", extraction_config=how, parsing_timeout=None)
    return found
