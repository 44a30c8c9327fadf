"""Whether an answer to a mathematical question equals the reference answer.

The final answer of a text is the one that it states as such, after its thinking and unless it takes it back. Numbers
with units are compared exactly, words as words, and everything else by math-verify. Finding the answer takes time
linear in the length of the text: no pattern tries a part twice, of many boxes only the last are read, and of what
follows a phrase only a bounded part.
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
from itertools import accumulate
from typing import Any

from fspo.tasks.spelling import DOLLAR, tidy

__all__ = ["equal", "final_answer", "reference"]

LONGEST = 1000  # characters of a final answer; a longer one is not an answer
LONGEST_ALONE = 120  # characters of a text that is nothing but an answer
MOST_BOXES = 16
CLAUSE = 300  # characters read after a phrase
TAIL = 600  # characters read after a statement
SECONDS = 2.0  # of processor time for one comparison
LONGEST_EXPRESSION = 400
DEEPEST = 16  # brackets inside each other
MOST_TERMS = 8  # of a chain of equations
LARGEST_POWER = 20_000  # of a number: sympy computes powers to the last digit
DIGITS = 6  # significant digits that a rounded fraction needs


def equal(gold: str, completion: str) -> bool:
    """Whether the final answer that the completion states equals the reference.

    What is not decided after `SECONDS` is wrong, so that no answer can choose to be unscored.
    """
    given = final_answer(completion) or ""
    boxes = [box.answer for box in _boxes(_conclusion(completion))]
    if given and given in boxes[-1:] and len(_COMMA.split(", ".join(boxes))) == len(_COMMA.split(tidy(gold))):
        given = ", ".join(boxes)  # boxes all over the text may be one answer
    verdict = _plainly_equal(gold, given)
    if verdict is not None:
        return verdict
    _math_verify()  # imports sympy, which is not part of the answer's time
    with _limited():
        return _same_expression(tidy(gold), tidy(given))
    return False


def reference(text: str) -> str:
    """The final answer in a reference solution: after GSM8K's ####, in the last boxes or tags, else the whole text."""
    if "####" in text:
        return text.rsplit("####", 1)[1].strip().replace(",", "")
    marked = any(marker in text for marker in ("\\boxed", "<answer>", "nswer is", "nswer:"))
    return (final_answer(text) if marked else None) or text.strip()


# --- the final answer of a text ---

_THINKING = re.compile(
    r"(?i:<(/?)(?:think(?:ing)?|thought|reasoning)>)|◁(/?)think▷|\[(/?)THINK\]|<\|(?:(end)|begin)_of_thought\|>"
)
_BRACED = r"(?:[^{}\\]|\\.)*+"  # between braces; nothing is tried twice
for _ in range(DEEPEST):
    _BRACED = rf"(?:[^{{}}\\]|\\.|\{{{_BRACED}\}})*+"
_BOX = re.compile(rf"\\boxed\s{{0,8}}(?:\{{({_BRACED})\}}|(-?[\d.,]*\d)|\{{)", re.DOTALL)
_JOINED = re.compile(
    r"(?:[\s$,;&.}]|\\[\])(\[,; ]|\\quad|\\(?:text|mathrm|mbox)\{|and|or|also|with|\\?[a-zA-Z](?:_\{?\w\}?)?\s*=)*+"
)
_CALCULATED = re.compile(r"\s?\\(?:sqrt|pi|times|cdot|frac)(?![a-zA-Z])|\^(?!\s?\{?\s?\\circ)|\s?[*/+]\s?\d|\s-\s?\d")
_TAG = re.compile(r"(?is)<(?:final_)?answer>((?:(?!</?(?:final_)?answer>).)*+)</(?:final_)?answer>")
_PHRASE = re.compile(
    r"(?m:^)[#*_ ]*(?:(?:[Tt]he|[Mm]y) )?(?:[Ff]inal )?[Aa]nswer:?[*_]{0,3}[ \t]*\n|(?P<hash>####[# \t]*)"
    r"|(?:[Aa]nswers?|ANSWERS?)[*_]{0,3}(?:(?:\s+(?:to|of|for)\s[^.\n:=]{1,80}?)?(?:,? (?:then|therefore|thus),?)?"
    r"\s{0,4}(?:(?:must|should|will|would|has to|turns out to|works out to)\s+be|comes (?:out )?to"
    r"|is|are|was|be|equals?|:|becomes)|\s{0,4}=)(?![a-zA-Z])[\s:*_]{0,8}"
)
_SUPPOSED = re.compile(  # before a phrase
    r"(?i)\b(?:suppos\w+|assum\w+|pretend|imagine|if|unless|whether|when)\s+(?:that\s+)?(?:\w+\s+){0,3}$"
    r"|\b(?:doubt(?:s|ful)?|unlikely|false|untrue|incorrect|wrong|nobody|no one|wonder|disagree)\b[^,]*$"
    r"|(?:n't|\b(?:not|cannot|never))\s+(?:\w+\s+){0,2}(?:true|likely|sure|certain|say|think|believe|know|mean"
    r"|conclude|claim|case|find)\b[^,]*$|\b(?:reference|expected|textbook|ground[- ]truth)\s+$"
)
_VALUE = re.compile(r"[-+−–]?\s?(?:[\d$£€¥₹\\(\[{√½¼¾⅓⅔π.∞]|[a-zA-Z](?:[.,]?$|\s{0,2}[=^+\-*/(<>≤≥_≠\\])|[A-J][).]\s)")
_SENTENCE = re.compile(r"(?<!^[A-J])[.?](?=\s|$|\*)|!(?=\s*$|\s+[A-Z]|\*)|\n|<[|/a-z]|```")
_CONTINUED = re.compile(
    r",? (?:because|since|which|as|therefore|after|where|when|given|making|meaning|assuming)(?![a-zA-Z])"
    r"|, (?=[a-z]{2,}\b(?<!and)(?<!or))|\s\((?=[^()\\]*[a-z]{3}|[\d\s.]+[-+*/×=])|\s[-–—]\s(?=[a-zA-Z]{2})|;\s"
)
_DIGITS = re.compile(r"[-+−–]?\s?[$£€]?\s?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")
_DOUBT = r"not|no|nor|neither|either|never|cannot|maybe|perhaps|possibly|if|unless|except|but|wrong|incorrect"
_OPEN = re.compile(  # beside a number: it is not the answer, or only part of it
    rf"(?i)\b(?:{_DOUBT}|or|might|could|may|un(?:known|clear|sure|certain|determined)|impossible|guess|at least|at most"
    r"|up to|than|minus|plus|times|divided|multiplied|negative|half|third|quarter|twice|double|triple|thrice|root"
    r"|squared?|cubed?|log|power|reciprocal|inverse|opposite|factorial|near(?:ly)?|almost|close|under|over|above|below"
    r"|beyond|before|after|between|next|previous|within|without|one of|any(?:thing)?|something|candidates?)\b|n't\b"
)
_WITHDRAWN = re.compile(  # after a statement
    r"(?i)\bwait[,.!…:]|\b(?:no,? wait|scratch that|on second thought|i (?:have )?made an? (?:mistake|error)"
    r"|i (?:was wrong|do(?: not|n't) know|have no idea|give up)"
    r"|(?:that|this|it|which)(?:(?:'s| is| was) (?:wrong|incorrect|false)"
    r"|(?:'s not| is not| was not| isn't| wasn't| cannot be| can't be) (?:right|correct)))\b"
    r"|^[\s$*.)\]\\}]*(?:is|was)(?:n't| not| wrong| incorrect| false)\b"
)
_FORMULA = re.compile(r"\\\[((?:(?!\\[\[\]]).)++)\\\]\s*$|\$\$([^$]++)\$\$\s*$", re.DOTALL)
_GIVES_UP = re.compile(  # before a formula
    r"(?i)\b(?:can(?:not|'t| not)|could(?:n't| not)|unable to|(?:do|does|did)(?:n't| not) know|not (?:sure|certain"
    r"|enough)|no idea|giv(?:e|ing) up|maybe|perhaps|guess|un(?:certain|sure|clear)|impossible to|insufficient"
    r"|undetermined|more information|(?:might|could|may) be)\b"
)
_DENIED = re.compile(  # before a box
    r"(?i)(?:\b(?:not|never|neither|nor|cannot)|n't)(?:\s+(?:be|equal|simply|just|actually|to|the|answer)){0,3}"
    r"[\s$*:\\(\[{]*$|(?:\\neq?|≠|!=|\\not\s?=)[\s{]*$"
)


@dataclass(frozen=True)
class Statement:
    """An answer that a text states, and where; empty if none can be determined."""

    start: int
    end: int
    answer: str = ""
    certain: bool = False  # it is a value; other words count only where nothing else is stated


def final_answer(text: str) -> str | None:
    """The final answer of a text, or None where it states none."""
    text = _conclusion(text)
    boxes = _boxes(text)
    tags = [Statement(tag.start(), tag.end(), tag[1].strip(), certain=True) for tag in _TAG.finditer(text)]
    statements = [*boxes[-1:], *tags[-1:], *_phrases(text)]
    stated = [each for each in statements if not any(box.start < each.start < box.end for box in boxes)]
    last = max(stated, key=lambda each: (each.certain, each.start), default=None)
    if last is not None:
        return None if _WITHDRAWN.search(text[last.end : last.end + TAIL]) else last.answer or None
    return None if "\\boxed" in text else _unmarked(text)  # what it boxes is no answer


def _conclusion(text: str) -> str:
    """What stands after the thinking, its boxes of one kind; nothing where the thinking is not closed."""
    last = max(_THINKING.finditer(text), key=lambda tag: tag.start(), default=None)
    if last and not any(last.groups()):
        return ""
    text = text[last.end() if last else 0 :].replace("’", "'")
    return re.sub(r"\\f(?:rame)?box(?![a-z])", r"\\boxed", text)


def _boxes(text: str) -> list[Statement]:
    """The last outermost \\boxed{...}, as one where only `and` or a comma separates them; one not closed is empty.

    A box that the words before it deny, or that is a factor or a base of something larger, is none.
    """
    boxes: list[Statement] = []
    for box in _BOX.finditer(text, len(text.rsplit("\\boxed", MOST_BOXES)[0])):
        start, end = box.span()
        before = text[max(0, start - 40) : start]
        content = (box[1] or box[2] or "").strip()
        if re.search(r"(?:=|\$|\\\[|\\\()\s*[-−]\s?$", before):
            content = f"-{content}" if re.fullmatch(r"[\d.,]+", content) else f"-({content})"
        if _DENIED.search(before) or _CALCULATED.match(text, end):
            continue
        if content and boxes and _JOINED.fullmatch(text, boxes[-1].end, start):
            start, first = boxes[-1].start, boxes.pop().answer
            content = content if content == first else f"{first}, {content}"
        boxes.append(Statement(start, end, content, certain=True))
    return boxes


def _phrases(text: str) -> Iterator[Statement]:
    """What stands after the last `The answer is ...`, and after GSM8K's last ####.

    A number after `The answer is ...` may be another answer, so that none is stated.
    """
    for worded, phrase in {match["hash"] is None: match for match in _PHRASE.finditer(text)}.items():
        start, end = phrase.span()
        before = re.split(r"[.?!:;,]\s|\n", text[max(0, start - 100) : start])[-1]
        statement = _read(text, start, end)
        if _SUPPOSED.search(before):  # I doubt that the answer is
            yield Statement(start, start)
        elif statement and not (worded and re.search(r"\d", text[statement.end : end + TAIL])):
            yield statement


def _read(text: str, start: int, after: int) -> Statement | None:
    """The answer in a clause: a value, its only number, or its words; None for a question.

    The clause is the first sentence after a phrase, without what a subordinate clause adds to it.
    """
    content = text[after : after + CLAUSE].lstrip(" \t\n*_:")
    sentence = _SENTENCE.search(content)
    value = content[: sentence.start()] if sentence else content
    value = _CONTINUED.split(value, maxsplit=1)[0].strip().rstrip("*_ ")
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


def _unmarked(text: str) -> str | None:
    """A formula displayed at the end of a text that does not give up before it, or a whole text that is an answer.

    That is a value with its unit, or words without any number.
    """
    formula = _FORMULA.search(text)
    if formula and not _GIVES_UP.search(text[max(0, formula.start() - TAIL) : formula.start()]):
        return formula[1] or formula[2]
    text = text.strip()
    value = _VALUE.match(text.lstrip("*_`=:≈ \u200b\ufeff"))
    if not text or len(text) > LONGEST_ALONE or "\n" in text or not (value or re.fullmatch(r"[^\d\\]+", text)):
        return None
    return text


# --- what needs no sympy: numbers, words, choices such as (C), times of day, digits in another base ---

_WORDS = re.compile(r"\(?[A-Z]\)|(?=.*(?<![\\a-zA-Z])(?:[a-zA-Z]{3,}|[Nn]o)(?![a-zA-Z]))[^\d\\=<>^+*/]+")
_TIME = re.compile(r"(?:at)?0?(\d{1,2}(?::\d\d)*?)(?::00)*(am|pm)?")


def _plainly_equal(gold: str, given: str) -> bool | None:
    """The verdict on answers that are no expressions; None where math-verify has to compare."""
    if gold == given or not given or len(given) > LONGEST:
        return bool(given) and gold == given
    wanted, answer = tidy(gold), tidy(given)
    number, other = quantity(wanted), quantity(answer)
    if number is not None and other is not None:
        return number.equals(other)
    choice = re.fullmatch(r"\(?([A-Z])\)?", wanted)
    if choice and re.match(rf"\(?{choice[1]}[).:](?:\s|$)|\({choice[1]}\)", answer):  # (C) 18
        return True
    if not answer or (number is None and _WORDS.fullmatch(wanted)):
        words, other_words = (re.sub(r"[\s.,;:'\"()]+", " ", text).strip().casefold() for text in (wanted, answer))
        return words == other_words
    short, other_short = (re.sub(r"(?<!\d) | (?!\d)", "", text) for text in (wanted, answer))
    if re.search(r"\d\)?_", short + other_short):  # digits of a number in another base
        based, other_based = (re.sub(r"[{}()]", "", text).split("_") for text in (short, other_short))
        return other_based in (based, based[:1])
    time, other_time = _TIME.fullmatch(short), _TIME.fullmatch(other_short)
    if time and other_time:
        return time[1] == other_time[1] and (time[2] == other_time[2] or None in (time[2], other_time[2]))
    return True if short == other_short else None


# --- numbers with their units, exactly ---

_INT = r"(?:[1-9]\d{0,2}(?:,\d{3})+(?!\d)|\d{1,3}(?: \d{3})+(?!\d)|\d+)"
_DECIMAL = rf"(?:{_INT}(?:\.\d*)?|\.\d+)"
_INSIDE = rf"(?:\{{ ?([-+]? ?{_DECIMAL}) ?\}}|(\d))"
_FRAC = re.compile(rf" ?\\frac ?{_INSIDE} ?{_INSIDE}(?! ?[\d,.])")
_NUMBER = re.compile(
    rf"(?P<sign>[-+]?) ?(?P<money>[{DOLLAR}£€¥₹])? ?(?P<sign2>[-+]?) ?"
    rf"(?:(?:(?P<whole>{_INT}) )?\(?(?P<above>[-+]? ?{_DECIMAL}) ?/ ?(?P<below>(?=[\d.]*[1-9])\d*\.?\d+)\)?(?! ?[\d/,])"
    rf"|(?P<decimal>{_DECIMAL})"
    r"(?:(?:[eE]| ?(?:\\times|\\cdot|\*|x) ?10 ?\^ ?\{? ?)(?P<power>[-+]?\d{1,3})(?: ?\}|(?![\da-zA-Z])))?)"
)
_UNIT = re.compile(
    rf"(?P<glued>[a-zA-Z]*)(?:\s|[a-zA-Z\u4e00-\u9fff'\-/.()*%{DOLLAR}£€¥₹]"
    r"|(?:(?<=[a-zA-Z])|(?<=[a-zA-Z] ))\^ ?\{? ?-?[1-4](?: ?\})?|\\cdot)*"
)
# Words that change the value, leave it open or make a sentence of it; anything else after a number is its unit.
_NO_UNIT = re.compile(
    rf"\b(?:{_DOUBT}|or|and|plus|minus|times|divided|multiplied|mod|modulo|base|half|third|pi|sqrt|sin|cos|tan|log|ln"
    r"|exp|probably|otherwise|wait|frac|choose|factorial|negative|squared|cubed)\b|n't\b|[百千万亿十半零一二三四五六七八九不或和]"
    r"|(?:[-/*(]|\\cdot)(?! ?[a-zA-Z(]|[1-4] ?\}?)"  # a sign at the end
)
_KNOWN = {  # without the s of the plural
    name: names.split()[0]
    for names in (
        "percent %", f"dollar {DOLLAR}", "cent", "euro €", "pound £ lb", "yen ¥", "rupee ₹", "degree", "celsiu",
        "fahrenheit", "radian rad", "millimeter mm", "centimeter cm", "meter m", "kilometer km", "inch in inche",
        "foot ft feet", "yard yd", "mile mi mph", "gram g", "kilogram kg", "ounce oz", "second s sec", "minute min",
        "hour h hr", "day", "week", "month", "year yr", "am", "pm", "milliliter ml", "liter l", "gallon gal",
    )
    for name in names.split()
}  # fmt: skip
_MULTIPLES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_SHORT = frozenset(re.findall(r"\S+", "a an of at by on to is it as my up st nd rd th sq"))


@dataclass(frozen=True)
class Quantity:
    """An exact number, and its unit or per cent sign where that is a known one."""

    value: Fraction
    unit: str | None

    def equals(self, other: "Quantity") -> bool:
        """Whether the answer `other` equals this reference.

        A percentage matches the same number without a sign, except a reference below 1: that is a share, and so the
        percentage has to be the same share (50 % for 1/2). A reference with a per cent sign takes both.
        """
        units = {self.unit, other.unit} - {None}
        if len(units) > 1 and not ("degree" in units and units & {"celsiu", "fahrenheit"}):
            return False
        if units != {"percent"} or self.unit == other.unit:
            difference = abs(self.value - other.value)
            endless = 10**30 % difference.denominator > 0  # 1/3 may be rounded, 1/4 may not
            return not difference or (endless and difference * 10**DIGITS <= min(1, abs(self.value) + difference))
        if self.unit:
            return other.value in (self.value, self.value / 100)
        share = abs(self.value) < 1 or self.value.denominator > 1
        return (share and self.value == other.value / 100) or (abs(self.value) >= 1 and self.value == other.value)


def quantity(text: str) -> Quantity | None:
    """The number that a tidy text is, apart from a unit; None where it is anything else."""
    text = _FRAC.sub(r" \1\2/\3\4", text, count=1).lstrip()
    number = _NUMBER.match(text)
    unit = _read_unit(text[number.end() :]) if number else None
    if number is None or unit is None:
        return None
    value = _fraction(f"{number['decimal'] or number['above']}e{number['power'] or 0}")
    value = value / _fraction(number["below"]) + _fraction(number["whole"] or "0") if number["below"] else value
    if (number["sign"] == "-") != (number["sign2"] == "-"):
        value = -value
    factor, name = unit
    return Quantity(value * factor, _KNOWN.get(number["money"], name))


def _fraction(text: str) -> Fraction:
    return Fraction(re.sub("[, ]", "", text))


def _read_unit(tail: str) -> tuple[int, str | None] | None:
    """A multiple (million) and the unit, if that is a known one; None if the words after a number are no unit."""
    tail = tail.lower().replace("per cent", "percent")
    after = _UNIT.fullmatch(tail)
    if after is None or _NO_UNIT.search(tail) or "%" in tail.strip()[1:]:
        return None
    words = [word.rstrip("s") or "s" for word in re.findall(rf"[a-z][a-z'-]*|[%{DOLLAR}£€¥₹]", tail)]
    if any(len(word) <= 2 and word not in _KNOWN and word not in _SHORT for word in words):
        return None
    if after["glued"] and words[0] not in _SHORT and (words[0] not in _KNOWN or len(words[0]) == 1):
        return None  # 5x, and 5m, which may be a product
    factor = math.prod(_MULTIPLES.get(word, 1) for word in words)
    unit = next((_KNOWN[word] for word in words if word in _KNOWN), None)
    power = re.search(r"\^ ?\{? ?([23])|\b(?:square|sq)|\b(?:cubic|cu)\b", tail)
    if unit is None or power is None:
        return factor, unit
    return factor, unit + (power[1] or ("2" if "sq" in power[0] else "3"))


# --- expressions, by math-verify, within limits that are checked before anything is parsed ---

_EQUALS = re.compile(r"(?<![<>!:])=")
_COMMA = re.compile(r",(?: (?:and|or)(?![a-zA-Z]))?|(?<![a-zA-Z])(?:and|or)(?![a-zA-Z])|\\(?:lor|vee)(?![a-zA-Z])")
_SIGN = re.compile(r"\\pm(?![a-zA-Z])|\+/-|\+-")
_INEQUALITY = re.compile(r"[<>]|\\(?:le|ge|neq)(?![a-zA-Z])")
_BRACKETS = re.compile(r"(\\?[(\[{])(?:(?![)\]}] ?,|\\cup).)*(\\?[)\]}])")
_UNIT_AFTER = re.compile(r"(?<=[\d})a-z]) ((?:[a-zA-Z]{2,}[ /])*[a-zA-Z]{2,}(?:\^ ?\{?[23]\}?)?)$")
_NEGATED = re.compile(
    rf"(?i)\b(?:{_DOUBT}|try|guess|false|suppose|assum(?:e|ing))\b|n't\b|\\(?:notin|neg|lnot|neq)(?![a-zA-Z])"
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
    wanted, number = quantity(gold), quantity(given)
    if wanted and number:
        return wanted.equals(number)
    if _NEGATED.search(given):
        return False
    gold, given = _expression(gold), _expression(given)
    head, arrow, conclusion = given.rpartition("\\Rightarrow")
    if arrow:  # 18 -> 19 states no value
        return quantity(head.strip()) is None and _same_expression(gold, conclusion.strip())
    exact, rounding, rounded = given.rpartition("\\approx")
    if rounding:
        return _same_rounded(gold, exact.strip(), rounded.strip())
    gold, given = _listed(gold), _listed(given)
    terms = [term.strip() for term in _EQUALS.split(given)]
    if len(terms) > 1 and "=" not in gold and not re.search(r",|\b(?:and|or)\b", re.sub(r"\([^()]*\)", "", given)):
        # x = 2 + 3 = 5 is 5 if all its terms but names are: 2 + 2 = 42 is not 42
        values = [term for term in terms if term and not _is_name(term)] or terms[-1:]
        return len(terms) <= MOST_TERMS and all(_same_expression(gold, value) for value in values)
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
    """`1 \\pm 2` as its two values, `y = 2, x = 1` as a pair in the order of the letters, and `P(1, 2)` as a pair."""
    text = re.sub(r"^[A-Z] ?(?=\([^()]*,)", "", text)
    if _SIGN.search(text) and "," not in text:
        return f"{_SIGN.sub('+', text)}, {_SIGN.sub('-', text)}"
    named = [re.fullmatch(r" ?([a-zA-Z]) ?=([^=<>]+)", part) for part in _COMMA.split(text)]
    values = {match[1]: match[2] for match in named if match}
    if len(values) == len(named) > 1:
        return "(" + ", ".join(values[name] for name in sorted(values)) + ")"
    return text


def _same_rounded(gold: str, exact: str, rounded: str) -> bool:
    """`17/6 \\approx 3` is 17/6 as well as 3, if the one is the other rounded."""
    *_, last = terms = [term.strip() for term in _EQUALS.split(exact)]
    if not exact or all(_is_name(term) for term in terms):
        return _same_expression(gold, rounded)
    if not _readable(last) or not _parsed(last) or not _same_expression(last, exact):
        return False
    _, point, decimals = rounded.partition(".")
    near = _equivalent(last, rounded if point else f"{rounded}.0", max(0, len(decimals) - 1))  # 0.66 is cut off
    return near and (_same_expression(gold, last) or _same_expression(gold, rounded))


def _is_name(text: str) -> bool:
    """Whether this names something (x, f(2), a + b, \\angle ABC) and has no value of its own as 2 + 2 has."""
    bare = re.sub(r"[_^] ?(?:\{[^{}]*\}|\w)|(?<=[a-zA-Z}])\([^()]*\)|\\[a-zA-Z]+", "", text)
    return text != "\\pi" and not re.search(r"\d", bare) and bool(re.search("[a-zA-Z]", text))


# Words, which sympy would multiply letter by letter, and what it may not finish.
_COSTLY = re.compile(r"(?<![\\a-zA-Z{])[a-zA-Z]{4,}|\\(?:sum|prod|[a-z]*int|lim[a-z]*|Gamma)(?![a-zA-Z])")
_POWER = re.compile(rf"(\S?) ?\^ ?(\{{{_BRACED}\}}|[-+]? ?\d+|\\[a-zA-Z]+(?: ?\{{{_BRACED}\}})*|\([^()]*\)|[({{].*|.)")
_HUGE = re.compile(r"(?:\d{4}|[^\da-zA-Z]) ?!|\\binom ?\{[^{}]*(?:\d{5}|\^)|\^ ?(?:\d+|\w|\{[^{}]*\}) ?\^")


def _readable(text: str) -> bool:
    """Whether reading and comparing this costs little: short, brackets not too deep, nothing that sympy writes out."""
    deepest = max(accumulate((character in "([{") - (character in "}])") for character in text), default=0)
    if len(text) > LONGEST_EXPRESSION or deepest > DEEPEST or _COSTLY.search(text) or _HUGE.search(text):
        return False
    largest = 1
    for base, exponent in _POWER.findall(text):
        size = math.prod(max(1, int(digits)) for digits in re.findall(r"\d+", exponent))
        if "^" in exponent and size > 9:  # a tower: 2^{2^3} is small, 9^{9^9} is not
            return False
        largest *= 1 if base.isalpha() else size
    return largest <= LARGEST_POWER


def _equivalent(gold: str, given: str, decimals: int = DIGITS) -> bool:
    """Whether math-verify finds two tidy expressions equal. Its own time limits, by the wall clock, are off."""
    if not _readable(given):
        return False
    wanted = _parsed(gold)
    if not wanted:
        raise ValueError(f"math-verify cannot read the reference answer {gold!r}: correct that row")
    verify = _math_verify()[1]
    return bool(verify(wanted, _parsed(given), decimals, timeout_seconds=None, allow_set_relation_comp=True))


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
