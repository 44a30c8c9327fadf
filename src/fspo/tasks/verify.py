"""Whether an answer to a mathematical question equals the reference answer.

The final answer of a text is the one that it states as such, after its thinking and unless it takes it back. Numbers
with units are compared exactly, words as words, and everything else by math-verify. Finding the answer takes time
linear in the length of the text: markers are searched from the end, a few at most, and only a bounded part after each
of them is read.
"""

import contextlib
import logging
import math
import re
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache, partial
from itertools import pairwise
from typing import Any

from fspo.tasks.spelling import DOLLAR, tidy

__all__ = ["equal", "final_answer", "reference"]

LONGEST = 1000  # characters of a final answer; a longer one is not an answer
LONGEST_ALONE = 120  # characters of a text that is nothing but an answer
MOST_BOXES = 16
MOST_PHRASES = 4
CLAUSE = 300  # characters read after a phrase
TAIL = 600  # characters read after a statement
SECONDS = 2.0  # of processor time for one comparison
LONGEST_EXPRESSION = 400
DEEPEST = 16  # brackets inside each other
MOST_TERMS = 8  # of a chain of equations
LARGEST_POWER = 20_000  # of a number: sympy computes powers to the last digit
DECIMALS = 6  # so many digits of a rounded fraction are as good as the fraction


def equal(gold: str, completion: str) -> bool:
    """Whether the final answer that the completion states equals the reference.

    What is not decided after `SECONDS` is wrong, so that no answer can choose to be unscored.
    """
    given = final_answer(completion)
    if given is None:
        return False
    boxes = [content for _, _, content in _boxes(_conclusion(completion))[0]]
    if boxes and given == boxes[-1] and len(boxes) == len(_COMMA.split(tidy(gold))) > 1:
        given = ", ".join(boxes)  # boxes all over the text may be one answer
    verdict = _plainly_equal(gold, given)
    if verdict is not None:
        return verdict
    _math_verify()  # imports sympy, which is not part of the answer's time
    with _limited():
        return _same_expression(_expression(tidy(gold)), _expression(tidy(given)))
    return False


def reference(text: str) -> str:
    """The final answer in a reference solution: after GSM8K's ####, in the last boxes or tags, else the whole text."""
    if "####" in text:
        return text.rsplit("####", 1)[1].strip().replace(",", "")
    marked = any(marker in text for marker in ("\\boxed", "<answer>", "nswer is", "nswer:"))
    return (final_answer(text) if marked else None) or text.strip()


# --- the final answer of a text ---

_THINKING = re.compile(
    r"(?P<closed></(?:think|thinking|thought|reasoning|Think|THINK)>|<\|end_of_thought\|>|◁/think▷|\[/THINK\])"
    r"|<(?:think|thinking|thought|reasoning|Think|THINK)>|<\|begin_of_thought\|>|◁think▷|\[THINK\]"
)
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s{0,8}(?:(\{)|(-?[\d.,]*\d))")
_JOINED = re.compile(
    r"(?:\s|[$,;&.]|\\[\])(\[,; ]|\\quad|\\text\{|\}|and|or|also|with|\\(?:text|mathrm|mbox)\{\s*(?:and|or)\s*\}"
    r"|\\?[a-zA-Z](?:_\{?\w\}?)?\s*=)*"
)
_CALCULATED = re.compile(r"\s?\\(?:sqrt|pi|times|cdot|frac)(?![a-zA-Z])|\^(?!\s?\{?\s?\\circ)|\s?[*/+]\s?\d|\s-\s?\d")
_TAG = re.compile(r"<(/?)(?:answer|ANSWER|Answer|final_answer)>")
_PHRASE = re.compile(
    r"(?:[Aa]nswers?|ANSWERS?)[*_]{0,3}"
    r"(?:(?:\s+(?:to|of|for)\s[^.\n:=]{1,80}?)?(?:,? (?:then|therefore|thus|hence|indeed),?)?\s{0,4}"
    r"(?:(?:must|should|will|would|has to|turns out to|works out to)\s+be|comes (?:out )?to"
    r"|is|are|was|be|equals?|:|becomes)|\s{0,4}=)(?![a-zA-Z])[\s:*_]{0,8}"
)
_HEADING = re.compile(r"(?:^|\n)[#*_ ]*(?:(?:[Tt]he|[Mm]y) )?(?:[Ff]inal )?[Aa]nswer:?[*_]{0,3}[ \t]*\n")
_SUPPOSED = re.compile(  # before a phrase
    r"\b(?:suppos\w+|assum\w+|pretend|imagine|if|unless|whether|when)\s+(?:that\s+)?(?:\w+\s+){0,3}$"
    r"|\b(?:doubt(?:s|ful)?|unlikely|false|untrue|incorrect|wrong|nobody|no one|wonder|disagree)\b[^,]*$"
    r"|(?:n['’]t|\b(?:not|cannot|never))\s+(?:\w+\s+){0,2}(?:true|likely|sure|certain|say|think|believe|know|mean"
    r"|conclude|claim|case|find)\b[^,]*$|\b(?:reference|expected|textbook|ground[- ]truth)\s+$",
    re.IGNORECASE,
)
_VALUE = re.compile(r"[-+−–]?\s?(?:[\d$£€¥₹\\(\[{√½¼¾⅓⅔π.∞]|[a-zA-Z](?:[.,]?$|\s{0,2}[=^+\-*/(<>≤≥_≠\\])|[A-J][).]\s)")
_SENTENCE = re.compile(r"(?<!^[A-J])[.?](?=\s|$|\*)|!(?=\s*$|\s+[A-Z]|\*)|\n|<[|/a-z]|```")
_CONTINUED = re.compile(
    r",? (?:because|since|which|as|therefore|after|where|when|given|making|meaning|assuming)(?![a-zA-Z])"
    r"|, (?=[a-z]{2,}\b(?<!and)(?<!or))|\s\((?=[^()\\]*[a-z]{3}|[\d\s.]+[-+*/×=])|\s[-–—]\s(?=[a-zA-Z]{2})|;\s"
)
_DIGITS = re.compile(r"[-+−–]?\s?[$£€]?\s?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")
_OPEN = re.compile(  # beside a number: it is not the answer, or only part of it
    r"\b(?:not|no|or|either|neither|nor|between|maybe|perhaps|possibly|might|could|may|cannot|unknown|unclear|unsure"
    r"|at least|at most|than|greater|fewer|guess|uncertain|undetermined|impossible|never|if|unless|except|but"
    r"|minus|plus|times|divided|multiplied|negative|half|third|quarter|twice|double|triple|thrice|root|squared?|cubed?"
    r"|log|power|reciprocal|inverse|opposite|factorial|near|nearly|almost|close|up to|under|over|above|below|beyond"
    r"|before|after|next|previous|within|without|any|anything|something|candidates?|among|one of|outside|inside)\b"
    r"|n['’]t\b",
    re.IGNORECASE,
)
_WITHDRAWN = re.compile(  # after a statement
    r"\bwait[,.!…:]|\b(?:no,? wait|scratch that|on second thought|i (?:made|have made) an? (?:mistake|error)"
    r"|i (?:was wrong|do not know|don['’]t know|have no idea|give up)"
    r"|(?:that|this|it|which)(?:(?:['’]s| is| was) (?:wrong|incorrect|false|not (?:right|correct))"
    r"|(?: is| was)n['’]t (?:right|correct)| can(?:not|['’]t) be (?:right|correct)))\b"
    r"|^[\s$*.)\]\\}]*(?:is|was)(?:n['’]t| not| wrong| incorrect| false)\b",
    re.IGNORECASE,
)
_GIVES_UP = re.compile(  # before a formula
    r"\b(?:can(?:not|['’]t| not)|could(?:n['’]t| not)|unable to|(?:do|does|did)(?:n['’]t| not) know|not (?:sure|certain"
    r"|enough)|no idea|giv(?:e|ing) up|maybe|perhaps|guess|uncertain|unsure|unclear|impossible to|insufficient"
    r"|undetermined|more information|(?:might|could|may) be)\b",
    re.IGNORECASE,
)
_DENIED = re.compile(  # before a box
    r"(?:\b(?:not|never|neither|nor|cannot)|n['’]t)(?:\s+(?:be|equal|simply|just|actually|to|the|answer)){0,3}[\s$*:\\(\[{]*$"
    r"|(?:\\neq?|≠|!=|\\not\s?=)[\s{]*$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Statement:
    """Where a text states an answer. An empty one leaves the answer open."""

    start: int
    end: int
    answer: str = ""
    certain: bool = False  # it is a value; other words count only where nothing else is stated


_Box = tuple[int, int, str]  # start, end, content


def final_answer(text: str) -> str | None:
    """The final answer of a text, or None where it states none."""
    text = _conclusion(text)
    boxes, unfinished = _boxes(text)
    statements = [_last_boxes(text, boxes), _tagged(text), _hashed(text), _phrase(text)]
    stated = [
        each for each in statements if each is not None and not any(start < each.start < end for start, end, _ in boxes)
    ]
    last = max(stated, key=lambda each: (each.certain, each.start), default=None)
    if unfinished and (last is None or unfinished > last.start):
        return None  # the last statement was cut off
    if last is not None:
        return None if _WITHDRAWN.search(text[last.end : last.end + TAIL]) else last.answer or None
    if "\\boxed" in text:
        return None  # what it boxes is no answer
    return _displayed(text) or _alone(text)


def _conclusion(text: str) -> str:
    """What stands after the thinking; nothing where that is not closed."""
    thinking = list(_THINKING.finditer(text))
    if thinking and not thinking[-1]["closed"]:
        return ""
    return text[thinking[-1].end() if thinking else 0 :]


def _boxes(text: str) -> tuple[list[_Box], int]:
    """The last outermost \\boxed{...}, and where an unfinished one after them begins, or 0.

    A box that the words before it deny, or that is a factor or a base of something larger, is none.
    """
    boxes: list[_Box] = []
    unfinished, end = 0, len(text)
    for _ in range(MOST_BOXES):
        start = end = max(text.rfind(name, 0, end) for name in ("\\boxed", "\\fbox", "\\framebox"))
        if start < 0:
            break
        opening = _BOX.match(text, start)
        if opening is None:
            continue
        close = opening.end() if opening[2] else _closing(text, opening.end())
        if close < 0:
            unfinished = unfinished or (0 if boxes else start + 1)
            continue
        while boxes and boxes[-1][0] < close:  # inside this one
            boxes.pop()
        before = text[max(0, start - 40) : start]
        content = (opening[2] or text[opening.end() : close - 1]).strip()
        if re.search(r"(?:=|\$|\\\[|\\\()\s*[-−]\s?$", before):
            content = f"-{content}" if re.fullmatch(r"[\d.,]+", content) else f"-({content})"
        if not _DENIED.search(before) and not _CALCULATED.match(text, close):
            boxes.append((start, close, content))
    return boxes[::-1], unfinished


def _closing(text: str, start: int) -> int:
    """The end of the brace that was opened before `start`; -1 if it is not closed soon."""
    depth = 1
    for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start, start + LONGEST):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.end()
    return -1


def _last_boxes(text: str, boxes: list[_Box]) -> Statement | None:
    """The last box, with those before it that only `and` or a comma separates from it."""
    if not boxes:
        return None
    first = len(boxes) - 1
    while first > 0:
        between = text[boxes[first - 1][1] : boxes[first][0]]
        if len(between) > 60 or not _JOINED.fullmatch(between):
            break
        first -= 1
    answer = ", ".join(dict.fromkeys(content for _, _, content in boxes[first:]))
    return Statement(boxes[-1][0], boxes[-1][1], answer, certain=True)


def _tagged(text: str) -> Statement | None:
    """<answer>...</answer>"""
    pairs = [(one, two) for one, two in pairwise(_TAG.finditer(text)) if two[1] and not one[1]]
    if not pairs:
        return None
    opening, closing = pairs[-1]
    return Statement(opening.start(), closing.end(), text[opening.end() : closing.start()].strip(), certain=True)


def _hashed(text: str) -> Statement | None:
    """What stands after GSM8K's ####, to the end of its line."""
    start = text.rfind("####")
    content = text[start + 4 : start + 4 + CLAUSE].lstrip("# \t") if start >= 0 else ""
    return _read(text, content, start, start)


def _phrase(text: str) -> Statement | None:
    """`The answer is ...`: the last one, with no number after it that may be another answer."""
    start = len(text)
    for _ in range(MOST_PHRASES):
        start = max(text.rfind(word, 0, start) for word in ("nswer", "NSWER"))
        if start < 1:
            return None
        line = text.rfind("\n", max(0, start - 40), start)
        phrase = _PHRASE.match(text, start - 1, start + 120) or _HEADING.match(text, max(0, line), start + 20)
        if phrase is None:
            continue
        before = re.split(r"[.?!:;,]\s|\n", text[max(0, start - 100) : start - 1])[-1]
        if _SUPPOSED.search(before):  # I doubt that the answer is
            return Statement(start, start)
        content = text[phrase.end() : phrase.end() + CLAUSE]
        statement = _read(text, content, start, phrase.end())
        if statement and re.search(r"\d", text[statement.end : phrase.end() + TAIL]):
            return None
        return statement
    return None


def _read(text: str, content: str, start: int, after: int) -> Statement | None:
    """What a clause says is the answer: a value, the one number in it, or else its words; of a question, nothing.

    The clause is the first sentence of the content, without what a subordinate clause adds to it.
    """
    content = content.lstrip(" \t\n*_:")
    sentence = _SENTENCE.search(content)
    value = content[: sentence.start()] if sentence else content
    value = value[: continued.start()] if (continued := _CONTINUED.search(value)) else value
    value = value.strip().rstrip("*_ ")
    if not value:
        return None
    end = text.find(value, after) + len(value)
    if sentence is not None and sentence[0] == "?":
        return Statement(start, end)
    if _VALUE.match(value):
        return Statement(start, end, value, certain=True)
    numbers = list(_DIGITS.finditer(value))
    if not numbers:
        return Statement(start, end, value)
    if _OPEN.search(value):
        return Statement(start, end)
    return Statement(start, end, value[numbers[0].start() :].strip(), certain=True) if len(numbers) == 1 else None


def _displayed(text: str) -> str | None:
    """The displayed formula at the end of a text that does not give up before it."""
    text = text.strip()
    for opening, closing in (("\\[", "\\]"), ("$$", "$$")):
        start = text.rfind(opening, 0, len(text) - 2) if text.endswith(closing) else -1
        if start >= 0 and len(text) - start <= LONGEST and not _GIVES_UP.search(text[max(0, start - TAIL) : start]):
            return text[start + 2 : -2].strip()
    return None


def _alone(text: str) -> str | None:
    """A text that is nothing but an answer: a value with its unit, or words without any number."""
    text = text.strip()
    if not text or len(text) > LONGEST_ALONE or "\n" in text:
        return None
    if _VALUE.match(text.lstrip("*_`=:≈ \u200b\ufeff")):
        return text
    return None if re.search(r"[\d\\]", text) else text


# --- what needs no sympy: numbers, words, choices such as (C), times of day, digits in another base ---

_WORDS = re.compile(r"\(?[A-Z]\)|(?=.*(?<![\\a-zA-Z])(?:[a-zA-Z]{3,}|[Nn]o)(?![a-zA-Z]))[^\d\\=<>^+*/]+")
_TIME = re.compile(r"(?:at )?(\d{1,2})(?: ?: ?(\d\d))?(?: ?: ?(\d\d))? ?(am|pm)?")


def _plainly_equal(gold: str, given: str) -> bool | None:
    """The verdict on answers that are no expressions; None where math-verify has to compare."""
    if gold == given or not given or len(given) > LONGEST:
        return gold == given
    wanted, answer = tidy(gold), tidy(given)
    number, other = quantity(wanted), quantity(answer)
    if number is not None and other is not None:
        return number.equals(other)
    choice = re.fullmatch(r"\(?([A-Z])\)?", wanted)
    if choice and re.match(rf"\(?{choice[1]}[).:](?:\s|$)|\({choice[1]}\)", answer):  # (C) 18
        return True
    if not answer or (number is None and _WORDS.fullmatch(wanted)):
        return bool(answer) and _words_of(wanted) == _words_of(answer)
    if re.sub(r"(?<!\d) | (?!\d)", "", wanted) == re.sub(r"(?<!\d) | (?!\d)", "", answer):
        return True
    based, other_based = (re.sub(r"[ {}()]", "", text).split("_") for text in (wanted, answer))
    if re.search(r"\d\)? ?_", wanted + answer):  # digits of a number in another base
        return other_based in (based, based[:1])
    time, other_time = _TIME.fullmatch(wanted), _TIME.fullmatch(answer)
    if time and other_time:
        clocks = [(int(match[1]), int(match[2] or 0), int(match[3] or 0)) for match in (time, other_time)]
        return clocks[0] == clocks[1] and (time[4] == other_time[4] or None in (time[4], other_time[4]))
    return None


def _words_of(text: str) -> str:
    return re.sub(r"[\s.,;:'\"()]+", " ", text).strip().casefold()


# --- numbers with their units, exactly ---

_INT = r"(?:[1-9]\d{0,2}(?:,\d{3})+(?!\d)|\d{1,3}(?: \d{3})+(?!\d)|\d+)"
_DECIMAL = rf"(?:{_INT}(?:\.\d*)?|\.\d+)"
_INSIDE = rf"(?:\{{ ?([-+]? ?{_DECIMAL}) ?\}}|(\d))"
_FRAC = re.compile(rf" ?\\frac ?{_INSIDE} ?{_INSIDE}(?! ?[\d,.])")
_NUMBER = re.compile(
    rf"(?P<sign>[-+]?) ?(?P<money>[{DOLLAR}£€¥₹])? ?(?P<sign2>[-+]?) ?"
    rf"(?:(?:(?P<whole>{_INT}) )?\(?(?P<above>[-+]? ?{_DECIMAL}) ?/ ?(?P<below>\d+(?:\.\d+)?|\.\d+)\)?(?! ?[\d/,])"
    rf"|(?P<decimal>{_DECIMAL})(?:[eE](?P<e>[-+]?\d{{1,3}})(?![\da-zA-Z])"
    r"| ?(?:\\times|\\cdot|\*|x) ?10 ?\^ ?\{? ?(?P<power>[-+]?\d{1,3})(?: ?\})?)?)"
)
_UNIT = re.compile(
    rf"(?P<glued>[a-zA-Z]*)(?:\s|[a-zA-Z\u4e00-\u9fff'\-/.()*%{DOLLAR}£€¥₹]"
    r"|(?:(?<=[a-zA-Z])|(?<=[a-zA-Z] ))\^ ?\{? ?-?[1-4](?: ?\})?|\\cdot)*"
)
# Words that change the value, leave it open or make a sentence of it; anything else after a number is its unit.
_NO_UNIT = re.compile(
    r"\b(?:or|and|not|no|nor|neither|either|plus|minus|times|divided|multiplied|maybe|perhaps|possibly|probably|if|but"
    r"|mod|modulo|base|half|third|pi|sqrt|sin|cos|tan|log|ln|exp|wrong|incorrect|cannot|otherwise|unless|except|wait"
    r"|frac|choose|factorial|negative|squared|cubed)\b|n't\b|[百千万亿十半零一二三四五六七八九不或和]"
    r"|(?:[-/*(]|\\cdot)(?! ?[a-zA-Z(]|[1-4] ?\}?)"  # a sign at the end
)
_KNOWN = {  # without the s of the plural
    name: names.split()[0]
    for names in (
        "dollar", "cent", "euro", "pound lb", "percent", "degree", "celsiu", "fahrenheit", "radian rad",
        "millimeter mm", "centimeter cm", "meter m", "kilometer km", "inch in inche", "foot ft feet", "yard yd",
        "mile mi mph", "gram g", "kilogram kg", "ounce oz", "second s sec", "minute min", "hour h hr", "day", "week",
        "month", "year yr", "am", "pm", "milliliter ml", "liter l", "gallon gal",
    )
    for name in names.split()
}  # fmt: skip
_MULTIPLES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_SHORT = frozenset(re.findall(r"\S+", "a an of at by on to is it as my up st nd rd th sq"))
_MONEY = {DOLLAR: "dollar", "£": "pound", "€": "euro", "¥": "yen", "₹": "rupee"}


@dataclass(frozen=True)
class Quantity:
    """An exact number, whether it is a percentage, and its unit where that is a known one."""

    value: Fraction
    percent: bool
    unit: str | None
    decimals: int | None  # digits after the point; None of a fraction

    def equals(self, other: "Quantity") -> bool:
        """Whether the answer `other` equals this reference.

        A percentage matches the same number without a sign, except a reference below 1: that is a share, and so the
        percentage has to be the same share (50 % for 1/2). A reference with a per cent sign takes both.
        """
        units = {self.unit, other.unit}
        if None not in units and len(units) > 1 and not ("degree" in units and units & {"celsiu", "fahrenheit"}):
            return False
        if self.percent == other.percent:
            return self._close(other)
        if self.percent:
            return other.value in (self.value, self.value / 100)
        share = abs(self.value) < 1 or self.value.denominator > 1
        return (share and self.value == other.value / 100) or (abs(self.value) >= 1 and self.value == other.value)

    def _close(self, other: "Quantity") -> bool:
        """Equal, or one is a fraction and the other that fraction rounded to six digits or more."""
        if self.value == other.value or None not in (self.decimals, other.decimals):
            return self.value == other.value
        digits = max(self.decimals or 0, other.decimals or 0)
        return digits >= DECIMALS and bool(abs(self.value - other.value) * 2 * 10**digits <= 1)


def quantity(text: str) -> Quantity | None:
    """The number that a tidy text is, apart from a unit; None where it is anything else."""
    if "\\frac" in text:
        text = _FRAC.sub(
            lambda frac: f"{' ' if frac.start() else ''}{frac[1] or frac[2]}/{frac[3] or frac[4]}", text, 1
        )
    number = _NUMBER.match(text)
    unit = _read_unit(text[number.end() :]) if number else None
    if number is None or unit is None:
        return None
    factor, percent, name = unit
    power = number["e"] or number["power"]
    if number["decimal"] is not None:
        value = _fraction(number["decimal"]) * (Fraction(10) ** int(power) if power else 1)
        decimals = None if power else len(number["decimal"].partition(".")[2])
    elif not _fraction(number["below"]):
        return None
    else:
        value, decimals = _fraction(number["above"]) / _fraction(number["below"]), None
        value += _fraction(number["whole"] or "0")
    if (number["sign"] == "-") != (number["sign2"] == "-"):
        value = -value
    return Quantity(value * factor, percent, _MONEY.get(number["money"] or "", name), decimals)


def _fraction(text: str) -> Fraction:
    return Fraction(re.sub("[, ]", "", text).removesuffix("."))


def _read_unit(tail: str) -> tuple[int, bool, str | None] | None:
    """A multiple (million), whether it is per cent, and the unit; None if the words after a number are no unit."""
    tail = tail.lower().replace("per cent", "percent")
    after = _UNIT.fullmatch(tail)
    if after is None or _NO_UNIT.search(tail) or "%" in tail.strip()[1:]:
        return None
    words = [word.rstrip("s") or "s" for word in re.findall(r"[a-z][a-z'-]*", tail)]
    if any(len(word) <= 2 and word not in _KNOWN and word not in _SHORT for word in words):
        return None
    if after["glued"] and words[0] not in _SHORT and (words[0] not in _KNOWN or len(words[0]) == 1):
        return None  # 5x, and 5m, which may be a product
    factor = _MULTIPLES.get(words[0], 1) if words else 1
    if any(word in _MULTIPLES for word in words[1:]):
        return None
    if "%" in tail or "percent" in words:
        return factor, True, None
    unit = next((_KNOWN[word] for word in words if word in _KNOWN), None)
    unit = unit or next((name for sign, name in _MONEY.items() if sign in tail), None)
    power = re.search(r"\^ ?\{? ?([23])|\b(?:square|sq)|\b(?:cubic|cu)\b", tail)
    if unit is None or power is None:
        return factor, False, unit
    return factor, False, unit + (power[1] or ("2" if "sq" in power[0] else "3"))


# --- expressions, by math-verify, within limits that are checked before anything is parsed ---

_EQUALS = re.compile(r"(?<![<>!:])=")
_COMMA = re.compile(r",(?: (?:and|or)(?![a-zA-Z]))?|(?<![a-zA-Z])(?:and|or)(?![a-zA-Z])|\\(?:lor|vee)(?![a-zA-Z])")
_SIGN = re.compile(r"\\pm(?![a-zA-Z])|\+/-|\+-")
_INEQUALITY = re.compile(r"[<>]|\\(?:le|ge|neq)(?![a-zA-Z])")
_BRACKETS = re.compile(r"(\\?[(\[{])(?:(?![)\]}] ?,|\\cup).)*(\\?[)\]}])")
_UNIT_AFTER = re.compile(r"(?<=[\d})a-z]) ((?:[a-zA-Z]{2,}[ /])*[a-zA-Z]{2,}(?:\^ ?\{?[23]\}?)?)$")
_NEGATED = re.compile(
    r"\b(?:not|no|never|isn't|neither|nor|cannot|suppose|assume|assuming|if|try|maybe|perhaps|guess|unless|wrong|false"
    r"|incorrect)\b|\\(?:not|notin|neg|lnot|neq)(?![a-zA-Z])",
    re.IGNORECASE,
)


def _expression(text: str) -> str:
    """What math-verify compares: the value of a number with a unit, and expressions without the words of a unit."""
    number, unit = quantity(text), _UNIT_AFTER.search(text)
    if number is not None:
        return str(number.value)
    text = text[: unit.start()].strip() if unit and quantity("1 " + unit[1]) else text
    return re.sub(r"(?<=[\d})]) (?=[a-zA-Z](?![a-zA-Z]))", "", text)  # 5 i


def _same_expression(gold: str, given: str) -> bool:
    """Whether math-verify finds the same, and all terms of a chain of equations and the kinds of brackets agree."""
    if _NEGATED.search(given):
        return False
    head, arrow, conclusion = given.rpartition("\\Rightarrow")
    if arrow:  # 18 -> 19 states no value
        return quantity(head.strip()) is None and _same_value(gold, conclusion.strip())
    exact, rounding, rounded = given.rpartition("\\approx")
    if rounding:
        terms = [term.strip() for term in _EQUALS.split(exact)]
        holds = len(terms) == 1 or (len(terms) <= MOST_TERMS and _same_chain(terms[-1], terms))
        return holds and _same_rounded(gold, terms[-1], rounded.strip())
    gold, given = _listed(gold), _listed(given)
    if gold.startswith("(") and re.match(r"[A-Z] ?\(", given):  # the point P(3, 4)
        given = given[1:].strip()
    terms = [term.strip() for term in _EQUALS.split(given)]
    if len(terms) > 1 and "=" not in gold and not re.search(r",|\b(?:and|or)\b", re.sub(r"\([^()]*\)", "", given)):
        return len(terms) <= MOST_TERMS and _same_chain(gold, terms)
    if _INEQUALITY.search(gold) and not re.search(r"[<>(\[]|\\[lg]e", given):
        return False  # 2 < x < 3 is no pair of numbers
    unions, rays = gold.split("\\cup"), _COMMA.split(given)
    if _INEQUALITY.search(given) and len(unions) == len(rays) > 1:  # x < 1 or x > 2
        return all(any(_equivalent(union, ray) for ray in rays) for union in unions)
    brackets, other_brackets = _BRACKETS.fullmatch(gold), _BRACKETS.fullmatch(given)
    if "," in gold and brackets and other_brackets and brackets.groups() != other_brackets.groups():
        return False
    return _equivalent(gold, given)


def _listed(text: str) -> str:
    """`1 \\pm 2` as the list of its two values, and `y = 2, x = 1` as a pair in the order of the letters."""
    if _SIGN.search(text) and "," not in text:
        return f"{_SIGN.sub('+', text)}, {_SIGN.sub('-', text)}"
    named = [re.fullmatch(r" ?([a-zA-Z]) ?=([^=<>]+)", part) for part in _COMMA.split(text)]
    values = {match[1]: match[2] for match in named if match}
    if len(values) == len(named) > 1:
        return "(" + ", ".join(values[name] for name in sorted(values)) + ")"
    return text


def _same_value(gold: str, given: str) -> bool:
    wanted, number = quantity(gold), quantity(given)
    return wanted.equals(number) if wanted and number else _same_expression(_expression(gold), _expression(given))


def _same_chain(gold: str, terms: list[str]) -> bool:
    """A chain `x = 2 + 3 = 5` is 5 if all its terms but names are: 2 + 2 = 42 is not 42."""
    values = [term for term in terms if term and not _is_name(term)] or terms[-1:]
    return all(_same_value(gold, value) for value in values)


def _same_rounded(gold: str, exact: str, rounded: str) -> bool:
    """`17/6 \\approx 3` is 17/6 as well as 3: the two sides differ by at most 5 %, or by rounding."""
    if not exact or _is_name(exact):
        return _same_value(gold, rounded)
    if not _readable(exact) or not _readable(rounded):
        return False
    try:
        a, b = (complex(_parsed(text)[0].evalf()) for text in (exact, rounded))
    except (TypeError, AttributeError, IndexError):  # an expression with names
        return False
    near = abs(a - b) <= max(0.05 * abs(a), 0.5 * 10.0 ** -len(rounded.partition(".")[2]))
    return near and (_same_value(gold, exact) or _same_value(gold, rounded))


def _is_name(text: str) -> bool:
    """Whether this names something (x, f(2), a + b, \\angle ABC) and has no value of its own as 2 + 2 has."""
    bare = re.sub(r"[_^] ?(?:\{[^{}]*\}|\w)|(?<=[a-zA-Z}])\([^()]*\)|\\[a-zA-Z]+", "", text)
    return text != "\\pi" and not re.search(r"\d", bare) and bool(re.search("[a-zA-Z]", text))


# Words, which sympy would multiply letter by letter, and what it may not finish.
_COSTLY = re.compile(r"(?<![\\a-zA-Z{])[a-zA-Z]{4,}|\\(?:sum|prod|[a-z]*int|lim[a-z]*|Gamma)(?![a-zA-Z])")
_POWER = re.compile(r"(\S?) ?\^ ?(\{(?:[^{}]|\{[^{}]*\})*\}|[-+]? ?\d+|\\[a-zA-Z]+(?: ?\{[^{}]*\})*|\([^()]*\)|[^{])")
_HUGE = re.compile(r"(?:\d{4}|[^\da-zA-Z]) ?!|\\binom ?\{[^{}]*(?:\d{5}|\^)|\^ ?(?:\d+|\w|\{[^{}]*\}) ?\^")


def _readable(text: str) -> bool:
    """Whether reading and comparing this costs little: short, brackets not too deep, nothing that sympy writes out."""
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in "}])")
        deepest = max(deepest, depth)
    if len(text) > LONGEST_EXPRESSION or deepest > DEEPEST or _COSTLY.search(text) or _HUGE.search(text):
        return False
    powers = _POWER.findall(text)
    if len(powers) != text.count("^") - sum(exponent.count("^") for _, exponent in powers):
        return False
    largest = 1
    for base, exponent in powers:
        size = math.prod(max(1, int(digits)) for digits in re.findall(r"\d+", exponent))
        if "^" in exponent and size > 9:  # a tower: 2^{2^3} is small, 9^{9^9} is not
            return False
        largest *= 1 if base.isalpha() else size
    return largest <= LARGEST_POWER


def _equivalent(gold: str, given: str) -> bool:
    """Whether math-verify finds two tidy expressions equal. Its own time limits, by the wall clock, are off."""
    if not _readable(given):
        return False
    wanted = _parsed(gold)
    if not wanted:
        raise ValueError(f"math-verify cannot read the reference answer {gold!r}: correct that row")
    verify = _math_verify()[1]
    return bool(verify(wanted, _parsed(given), timeout_seconds=None, allow_set_relation_comp=True))


@lru_cache(maxsize=4096)
def _parsed(text: str) -> list[Any]:
    return _math_verify()[0](f"${text}$")


@cache
def _math_verify() -> tuple[Callable[[str], list[Any]], Callable[..., bool]]:
    """How math-verify parses and compares. Units are read here; its list of them holds letters such as h and c."""
    try:
        from latex2sympy2_extended import NormalizationConfig
        from math_verify import LatexExtractionConfig, parse, verify
    except ImportError:
        raise ValueError("question-answer tasks need the package math-verify: pip install 'fspo[tasks]'") from None
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    spelling = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none")
    latex = [LatexExtractionConfig(normalization_config=spelling)]  # the other kind would find the 5 in "5 -"
    return partial(parse, extraction_config=latex, parsing_timeout=None), verify


class _TimeOverError(BaseException):
    """Not an `Exception`, which sympy and math-verify would catch."""


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Leave the block after `SECONDS` of processor time, in a main thread as that of a scoring process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise _TimeOverError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS, SECONDS / 4)
    try:
        yield
    except _TimeOverError:
        pass
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
