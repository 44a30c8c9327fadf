"""Whether a final answer equals the reference: numbers with units exactly, words as words, all else by math-verify."""

import contextlib
import logging
import math
import re
import signal
import threading
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache, partial
from typing import Any

from fspo.tasks.verify.statements import LONGEST, Mode, final_answer

__all__ = ["equal", "reference"]

SECONDS = 2.0  # of processor time for one answer
LONGEST_EXPRESSION = 400
LONGEST_UNIT = 120
DEEPEST = 16  # brackets inside each other
MOST_RELATIONS = 8
LARGEST_POWER = 20_000  # of a number: sympy computes powers to the last digit
DECIMALS = 6  # so many digits of a rounded fraction are as good as the fraction


def equal(gold: str, completion: str, mode: Mode = "boxed") -> bool:
    """Whether the final answer that the completion states equals the reference.

    What is not decided after `SECONDS` is wrong, so that no answer can choose to be unscored.
    """
    stated = final_answer(completion, mode)
    if stated is None:
        return False
    answers = [", ".join(stated.parts)]
    if len(stated.parts) == 1 < len(stated.boxes) == len(_COMMA.split(tidy(gold))):
        answers.append(", ".join(stated.boxes))  # boxes all over the text may be one answer
    verdicts = {answer: _plainly_equal(gold, answer) for answer in answers}
    undecided = [answer for answer, verdict in verdicts.items() if verdict is None]
    if True in verdicts.values() or not undecided:
        return True in verdicts.values()
    _math_verify()  # imports sympy, which is not part of the answer's time
    wanted = _expression(tidy(gold))
    try:
        with _limited():
            return any(_same_expression(wanted, _expression(tidy(answer))) for answer in undecided)
    except _TimeOverError:
        return False


def reference(text: str) -> str:
    """The final answer in a reference solution: after GSM8K's ####, in the last boxes or tags, where several lines end,
    else the whole text.
    """
    if "####" in text:
        return text.rsplit("####", 1)[1].strip().replace(",", "")
    solution = "\n" in text.strip() and "\\begin" not in text
    if solution or any(marker in text for marker in ("\\boxed", "<answer>", "nswer is", "nswer:")):
        stated = final_answer(text, "any" if solution else "boxed")
        if stated is not None:
            return ", ".join(stated.parts)
    return text.strip()


# --- what needs no sympy: numbers, words, choices such as (C), times of day, digits of a number in another base ---

_WORDS = re.compile(r"\(?[A-Z]\)|(?=.*(?<![\\a-zA-Z])(?:[a-zA-Z]{3,}|[Nn]o)(?![a-zA-Z]))[^\d\\=<>^+*/]+")
_SPACE = re.compile(r"(?<!\d) | (?!\d)")
_BASED = re.compile(r"\(? ?([\dA-F]+) ?\)? ?_ ?\{? ?(\w+) ?\}?")
_TIME = re.compile(r"(?:at )?(\d{1,2})(?: ?: ?(\d\d))?(?: ?: ?(\d\d))? ?(?:([ap])\.? ?m\b\.?)?", re.IGNORECASE)


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
    if re.sub(_SPACE, "", wanted) == re.sub(_SPACE, "", answer):
        return True
    time, other_time = _TIME.fullmatch(wanted), _TIME.fullmatch(answer)
    if time and other_time:
        halves = [(match[4] or "").lower() for match in (time, other_time)]
        hours, other_hours = ([int(part or 0) for part in match.group(1, 2, 3)] for match in (time, other_time))
        return hours == other_hours and (halves[0] == halves[1] or "" in halves)
    based, other_based = _BASED.fullmatch(wanted), _BASED.fullmatch(answer)
    if based and (other_based or answer.isalnum()):
        return based.groups() == (other_based.groups() if other_based else (answer, based[2]))
    if other_based and wanted.isdigit():
        with contextlib.suppress(ValueError):  # 8 is no digit in base 8
            return int(other_based[1], int(other_based[2])) == int(wanted)
        return False
    return None


def _words_of(text: str) -> str:
    return re.sub(r"[\s.,;:'\"()]+", " ", text).strip().casefold()


# --- numbers with their units, exactly ---

DOLLAR = "\ue000"  # a dollar of money, apart from the $ that encloses LaTeX
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
    r"|frac|choose|factorial|negative)\b|n't\b|[百千万亿十半零一二三四五六七八九不或和]"
    r"|(?:[-/*(]|\\cdot)(?! ?[a-zA-Z(]|[1-4] ?\}?)"  # a sign at the end
)
_MULTIPLES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_KNOWN = {  # without the s of the plural
    name: names.split()[0]
    for names in (
        "dollar usd buck", "cent ¢", "euro eur", "yen", "rupee", "am", "pm", "pound lb gbp", "percent pct percentage",
        "degree deg", "celsiu", "fahrenheit", "radian rad", "millimeter mm millimetre", "centimeter cm centimetre",
        "meter m metre", "kilometer km kilometre kph kmh", "inch in inche", "foot ft feet", "yard yd", "mile mi mph",
        "milligram mg", "gram g", "kilogram kg", "ounce oz", "ton tonne", "second s sec", "minute min", "hour h hr",
        "day", "week", "month", "year yr", "milliliter ml millilitre", "liter l litre", "gallon gal", "quart qt",
        "pint", "cup",
    )
    for name in names.split()
}  # fmt: skip
_SHORT = frozenset(re.findall(r"\S+", "a an of at by on to is it as my up st nd rd th sq"))
_MONEY = {DOLLAR: "dollar", "£": "pound", "€": "euro", "¥": "yen", "₹": "rupee"}
_POWERS = {"square": 2, "squared": 2, "sq": 2, "cubic": 3, "cubed": 3, "cu": 3}


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
            return self._close(self.value, other.value, other)
        if self.percent:
            return other.value in (self.value, self.value / 100)
        share = other.value / 100
        if abs(self.value) >= 1 and self._close(self.value, other.value, other):
            return True
        return (abs(self.value) <= 1 or self.value.denominator > 1) and self._close(self.value, share, other, 2)

    def _close(self, wanted: Fraction, given: Fraction, other: "Quantity", more: int = 0) -> bool:
        """Equal, or one is a fraction and the other that fraction rounded to six digits or more."""
        if wanted == given:
            return True
        digits = other.decimals if self.decimals is None else self.decimals if other.decimals is None else None
        if digits is None or digits + more < DECIMALS:
            return False
        return bool(abs(wanted - given) * 2 * 10 ** (digits + more) <= 1)


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
    """A multiple (million), whether it is per cent, and the unit; None if these words are no unit."""
    if not tail:
        return 1, False, None
    tail = tail.lower().replace("per cent", "percent")
    after = _UNIT.fullmatch(tail) if len(tail) <= LONGEST_UNIT else None
    if after is None or _NO_UNIT.search(tail) or "%" in tail.strip()[1:]:
        return None
    glued = after["glued"].rstrip("s")
    if after["glued"] and (glued not in _KNOWN or glued in ("m", "g", "h", "l", "in", "")) and glued not in _SHORT:
        return None
    factor, unit, power = 1, None, 1
    for k, word in enumerate(re.findall(r"[a-z][a-z'-]*", tail)):
        singular = word.rstrip("s") or "s"
        if word in _MULTIPLES and k == 0:
            factor = _MULTIPLES[word]
        elif word in _POWERS and (word[-1] != "d" or unit is not None):
            power = _POWERS[word]
        elif word in _POWERS or (len(word) <= 2 and not {word, singular} & {*_SHORT, *_KNOWN}) or word in _MULTIPLES:
            return None
        elif unit is None:
            unit = _KNOWN.get(singular)
    if unit == "percent" or "%" in tail:
        return factor, True, None
    unit = unit or next((name for sign, name in _MONEY.items() if sign in tail), None)
    if raised := re.search(r"\^ ?\{? ?([23])", tail):
        power = int(raised[1])
    return factor, False, f"{unit}^{power}" if unit and power > 1 else unit


# --- one spelling: Unicode and LaTeX write the same thing in many ways ---

_SYMBOLS = {
    "×": r"\times ", "⋅": r"\cdot ", "·": r"\cdot ", "∙": r"\cdot ", "÷": "/", "⁄": "/", "∕": "/", "∞": r"\infty ",
    "°": " degrees ", "º": " degrees ", "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ", "≠": r"\neq ",
    "≈": r"\approx ", "≅": r"\approx ", "∈": r"\in ", "∪": r"\cup ", "∩": r"\cap ", "±": r"\pm ", "∅": r"\emptyset ",
    "⇒": r"\Rightarrow ", "→": r"\Rightarrow ", "⟨": "(", "⟩": ")", "’": "'", "∗": "*", "。": ".", "∣": "|",
    "−": "-", "√": "√", "∛": "∛",
}  # fmt: skip
_KINDS = {"Zs": " ", "Zl": " ", "Zp": " ", "Pd": "-", "Cf": "", "So": "", "Sk": "", "Mn": ""}
_COMMANDS_FOR = {
    name: command
    for command, names in {
        r"\frac": "dfrac tfrac cfrac nicefrac sfrac", r"\binom": "dbinom tbinom", r"\le ": "leqslant leq",
        r"\ge ": "geqslant geq", r"\neq ": "ne", r"\approx ": "simeq cong", "<": "lt", ">": "gt",
        r"\Rightarrow ": "implies therefore Longrightarrow rightarrow to", "(": "langle lbrack", ")": "rangle rbrack",
        r"\{": "lbrace", r"\}": "rbrace", r"\emptyset ": "varnothing", ":": "colon", " degrees ": "degree",
        " ": "quad qquad thinspace enspace space checkmark sim blacksquare square qed",
        "": "left right big Big bigg Bigg bigl bigr Bigl Bigr displaystyle textstyle limits bf rm it large Large",
    }.items()
    for name in names.split()
}  # fmt: skip
_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:rm|bf|it|sf|bb|bin)|[mfh]?box|emph|operatorname\*?|boxed|bm|boldsymbol"
    r"|underline|ensuremath) ?\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}"
)
_SPECIAL = re.compile(r"[\\*={<>';:_^]|  |base|sqrt|pi|infinity|degrees|\d\.\d{3}\.")
_BASES = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9"}
_REPLACED = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:textcolor|color|[hv]?phantom|[hv]space\*?) ?\{[^{}]*\}", " "),
        (r"(?<!\\)\\! *", ""),
        (r"\{([,:])\}", r"\1"),
        (r"(?<!\\)\\[,;:> ()\[\]]|\\\\ *$", " "),
        (r"\\([a-zA-Z]+)", lambda m: _COMMANDS_FOR.get(m[1], m[0])),
        (r"\\binom ?(\d) ?(\d)", r"\\binom{\1}{\2}"),
        (r"\{([^{}=]*)\\choose(?![a-zA-Z])([^{}=]*)\}", r"\\binom{\1}{\2}"),
        (r"(?<=\d) ?\\frac ?\{ ?([a-zA-Z]{2,}|[msghl]) ?\} ?\{ ?([a-zA-Z]{2,}|[msghl]) ?\}$", r" \1/\2"),
        (r"(\\sqrt ?\[ ?\w+ ?\]) ?([\da-zA-Z])", r"\1{\2}"),
        (r"\\\{ ?[a-z](?: *\\in *R)? *(?::|\\mid|\\vert|\|) ?(?=[^{}|]*(?:[<>=]|\\[lg]e))([^{}|]*)\\\}", r"\1"),
        (r"(?<=[\d ])\{ ?([a-zA-Z][a-zA-Z ]+) ?\}$", r" \1"),
        (r"\\frac ?(\\pi|[a-zA-Z]) ?(\d)", r"\\frac{\1}{\2}"),
        (r"\\sqrt ?(\\frac ?(?:\d ?\d|\{[^{}]*\} ?\{[^{}]*\}))", r"\\sqrt{\1}"),
        (r"(?<=\d) ?\^ ?\{? ?o ?\}?(?![a-zA-Z])|\^ ?\{? ?\\circ ?\}?|\^ ?\{ ?degrees ?\}|\^ ?degrees", " degrees "),
        (r"(\\(?:sin|cos|tan|cot|sec|csc)) ?\(? ?(\d+(?:\.\d+)?) *degrees *\)?", r"\1(\\frac{\2\\pi}{180})"),
        (r"degrees *(?:(C)|F)(?![a-zA-Z])", lambda m: " celsius " if m[1] else " fahrenheit "),
        ("=>", r"\\Rightarrow "),
        (r"\\%", "%"),
        (r" *\(? *base +(\d{1,2}) *\)? *$", r"_{\1}"),
        (r"(?<=_)(\{? ?)([a-z]{3,5})(?= ?\}?$)", lambda m: m[1] + _BASES.get(m[2], m[2])),
        (r"(?<=[\w)}]) ?\*\* ?(?=[\w({-])", "^"),
        (r"(?<![\\a-zA-Z])sqrt ?(?:\(([^()]*)\)|\{([^{}]*)\}|(\d+))", r"\\sqrt{\1\2\3}"),
        (r"(?<![\\a-zA-Z])(?:(pi)|infinity)(?![a-zA-Z])", lambda m: r"\pi " if m[1] else r"\infty "),
        (r"(?<!\d)\d{1,3}(?:(?:_\d{3})+|(?:'\d{3})+|(?:\.\d{3}){2,})(?![\d.])", lambda m: re.sub(r"[_.']", "", m[0])),
        (r"(\d*)\.(\d*)\\(?:overline|bar|dot) ?\{? ?(\d{1,20}) ?\}?(?![\d\\])", lambda m: _repeating(*m.groups())),
        (";", ","),
        ("  +", " "),
    )
]
_LABEL = re.compile(r"^(?i:(?:the )?(?:final |correct )?(?:answer|option|choice) ?(?:is|:|=)? ?)(?=[\d\\$({[A-Z+-])")
_CURRENCY = {"USD": DOLLAR, "US$": DOLLAR, "EUR": "€", "GBP": "£", "INR": "₹", "Rs": "₹", "Rs.": "₹", "JPY": "¥"}
_CODE = re.compile(r"^ ?(USD|US\$|EUR|GBP|INR|Rs\.?|JPY) ?\$? ?(?=[-+\d.])")


@lru_cache(maxsize=4096)
def tidy(text: str) -> str:
    """The same mathematics in one spelling: ASCII and a few LaTeX commands, without delimiters and font commands."""
    if text.isascii() and text.isdigit():
        return text
    if not text.isascii():
        text = "".join(map(_ascii, text)).replace("}^{", "").replace("}_{", "")
        text = re.sub(r"[√∛] ?(?=[\da-zA-Z({\\])", lambda m: r"\sqrt" if m[0][0] == "√" else r"\sqrt[3]", text)
        text = re.sub(r"(\\sqrt(?:\[3\])?)(?:\(([^()]*)\)|(\d+(?:\.\d+)?|[a-zA-Z]|\\pi))", r"\1{\2\3}", text)
    text = _money(re.sub(r"[\s~]", " ", text))
    if _SPECIAL.search(text):
        for _ in range(3):  # text inside text
            text = _TEXT.sub(r" \1 ", text)
        for pattern, replacement in _REPLACED:
            text = pattern.sub(replacement, text)
    text = _LABEL.sub("", _trimmed(text))
    while text.startswith("{") and text.endswith("}") and _enclosed(text):
        text = _trimmed(text[1:-1])
    return text


@lru_cache(maxsize=4096)
def _ascii(character: str) -> str:
    """How ASCII and LaTeX write a character: digits of all scripts, fractions, Greek letters, dashes, spaces."""
    if character.isascii() or character in "£€¥₹":
        return character
    name, kind = unicodedata.name(character, ""), unicodedata.category(character)
    plain = unicodedata.normalize("NFKC", character).replace("−", "-")
    for place, sign in (("SUPERSCRIPT ", "^"), ("SUBSCRIPT ", "_")):
        if name.startswith(place):
            return f"{sign}{{{plain}}}"
    if name.startswith("VULGAR FRACTION"):
        value = Fraction(unicodedata.numeric(character)).limit_denominator(10)
        return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    return _SYMBOLS.get(character) or _KINDS.get(kind, plain)


def _repeating(whole: str, fixed: str, repeated: str) -> str:
    """A decimal whose last digits repeat, as a fraction."""
    nines = (10 ** len(repeated) - 1) * 10 ** len(fixed)
    return rf"\frac{{{int(whole + fixed + repeated) - int(whole + fixed or '0')}}}{{{nines}}}"


def _money(text: str) -> str:
    """Removes the $ of LaTeX. An escaped $ is money."""
    if code := _CODE.match(text.replace("\\$", "$")):
        return _CURRENCY[code[1]] + text.replace("\\$", "$")[code.end() :]
    return text.replace("\\$", DOLLAR).replace("$", " ").strip()


def _trimmed(text: str) -> str:
    return text.lstrip(" *`\"':=,;").rstrip(" *`\"':=,;.")  # a point in front belongs to the number


def _flat(text: str) -> str:
    """The text with # for everything inside brackets, so that what is outside can be searched."""
    depth, outside = 0, []
    for part in re.findall(r"\\.|.", text):
        depth -= part in (")", "]", "}", "\\}")
        outside.append(part if depth <= 0 else "#" * len(part))
        depth += part in ("(", "[", "{", "\\{")
    return "".join(outside)


def _enclosed(text: str) -> bool:
    """Whether the bracket at the start is closed by the one at the end."""
    return bool(re.fullmatch(r"\\?[(\[{]#*\\?[)\]}]", _flat(text)))


# --- expressions, by math-verify, within limits that are checked before anything is parsed ---

_RELATION = re.compile(r"\\(?:neq|le|ge|approx|equiv|in|Rightarrow)(?![a-zA-Z])|[<>]|(?<![<>!:])=")
_COMMA = re.compile(r",(?: (?:and|or)(?![a-zA-Z]))?|(?<![a-zA-Z])(?:and|or)(?![a-zA-Z])|\\(?:lor|vee)(?![a-zA-Z])")
_SIGN = re.compile(r"\\pm(?![a-zA-Z])|\+/-|\+-")
_UNIT_AFTER = re.compile(r"(?<=[\d})a-z]) ((?:[a-zA-Z]{2,}[ /])*[a-zA-Z]{2,}(?:\^ ?\{?[23]\}?)?)$")
_NEGATED = re.compile(
    r"\b(?:not|no|never|isn't|neither|nor|cannot|suppose|assume|assuming|if|try|maybe|perhaps|guess|unless|wrong|false"
    r"|incorrect)\b|\\(?:not|notin|neg|lnot)(?![a-zA-Z])",
    re.IGNORECASE,
)
_INEQUALITIES = {"\\neq", "<", ">", "\\le", "\\ge", "\\equiv"}


def _expression(text: str) -> str:
    """What math-verify compares: the value of a number with a unit, and expressions without the words of a unit."""
    number, unit = quantity(text), _UNIT_AFTER.search(text)
    if number is not None:
        return str(number.value)
    text = text[: unit.start()].strip() if unit and quantity("1 " + unit[1]) else text
    return re.sub(r"(?<=[\d})]) (?=[a-zA-Z](?![a-zA-Z]))", "", text)  # 5 i


def _same_expression(gold: str, given: str) -> bool:
    """Checks what math-verify does not: all terms of a chain of equations, kinds of brackets, number of parts."""
    if _NEGATED.search(given):
        return False
    gold, given = _listed(gold), _listed(given)
    if not _COMMA.search(gold):
        given = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", given)
    elif gold.startswith("(") and re.match(r"[A-Z] ?\(", given):  # the point P(3, 4)
        given = given[1:].strip()
    asked, relations = (_RELATION.findall(_flat(text)) for text in (gold, given))
    if len(relations) > MOST_RELATIONS:
        return False
    if relations and not _COMMA.search(_flat(given)) and not _INEQUALITIES & {*relations, *asked}:
        return _same_chain(gold, given)
    if _INEQUALITIES & set(relations) and not asked:
        if "\\cup" in gold and len(rays := _COMMA.split(given)) > 1:  # x < 1 or x > 2
            unions = gold.split("\\cup")
            return len(unions) == len(rays) and all(any(_equivalent(a, b) for b in rays) for a in unions)
        return (gold[:1] in ("(", "[") or "\\cup" in gold) and _equivalent(gold, given)
    interval = given[:1] in ("(", "[") or "\\cup" in given
    if _INEQUALITIES & set(asked) and not relations and not interval:
        return False
    listed = not asked and not relations and not re.search(r"\\(?:cup|setminus|infty|pm)", gold + given)
    if listed and len(_COMMA.findall(gold)) != len(_COMMA.findall(given)):
        return False
    brackets = "," in gold and "matrix" not in gold and _enclosed(gold) and _enclosed(given)
    return (not brackets or (gold[0], gold[-1]) == (given[0], given[-1])) and _equivalent(gold, given)


def _listed(text: str) -> str:
    """`1 \\pm 2` as the list of its two values, and `y = 2, x = 1` as a pair in the order of the letters."""
    if _SIGN.search(text) and "," not in text:
        return f"{_SIGN.sub('+', text)}, {_SIGN.sub('-', text)}"
    named = [re.fullmatch(r" ?([a-zA-Z]) ?=([^=<>]+)", part) for part in _COMMA.split(text)]
    values = {match[1]: match[2] for match in named if match}
    if len(values) == len(named) > 1:
        return "(" + ", ".join(values[name] for name in sorted(values)) + ")"
    return text


def _same_chain(gold: str, given: str) -> bool:
    """A chain `x = 2 + 3 = 5` is 5 if all its terms are: 2 + 2 = 42 is not 42."""
    relations = list(_RELATION.finditer(_flat(given)))
    edges = [0, *(edge for match in relations for edge in match.span()), len(given)]
    terms = [given[a:b].strip() for a, b in zip(edges[::2], edges[1::2], strict=True)]
    signs = [match[0] for match in relations]
    if "\\Rightarrow" in signs:  # 18 -> 19 states no value
        return quantity(terms[0]) is None and _same_value(gold, given.rsplit("\\Rightarrow", 1)[1].strip())
    name, equation, value = gold.rpartition("=" if "=" in gold else "\\in")
    name, value = name.strip(), value.strip()
    if equation and ("=" in name or not _is_name(name) or (len(terms) == 2 and _equivalent(gold, given))):
        return _equivalent(gold, given)
    named = len(terms) > 1 and _is_name(terms[0])
    if len(name) == len(terms[0]) == 1 and name != terms[0]:
        return False
    if named or not terms[0]:  # x = 5, or = 5
        terms, signs = terms[1:], signs[1:]
    elif len(terms) == 2 and re.fullmatch("[a-zA-Z]", terms[1]):  # 5 = x
        terms, signs = terms[:1], []
    if not _same_value(value, terms[-1]):
        return False
    for term, sign in zip(terms, signs, strict=False):
        letters = re.search(r"[a-zA-Z]", re.sub(r"\\[a-zA-Z]+|degrees", "", term))
        if (letters and named) or (sign == "\\approx" and _near(term, terms[-1])):
            continue
        if not _same_value(value, re.sub(r"(?<=[\d)]) ?x ?(?=[\d(.])", "*", term)):
            return False
    return True


def _same_value(gold: str, given: str) -> bool:
    wanted, answer = quantity(gold), quantity(given)
    if wanted is not None and answer is not None:
        return wanted.equals(answer)
    return _same_expression(_expression(gold), _expression(given))


def _is_name(text: str) -> bool:
    """Whether this names something (x, f(2), a + b, \\angle ABC) and has no value of its own as 2 + 2 has."""
    bare = re.sub(r"[_^] ?(?:\{[^{}]*\}|\w)|(?<=[a-zA-Z}])\([^()]*\)|\\[a-zA-Z]+", "", text)
    return text != "\\pi" and not re.search(r"\d", bare) and bool(re.search("[a-zA-Z]", text))


def _near(first: str, second: str) -> bool:
    """Whether two expressions without names differ by at most 5 %, or by rounding."""
    if not _readable(first) or not _readable(second):
        return False
    try:
        a, b = (complex(_parsed(text)[0].evalf()) for text in (first, second))
    except (TypeError, AttributeError, IndexError):  # an expression with names
        return False
    return abs(a - b) <= max(0.05 * abs(a), 0.5 * 10.0 ** -len(second.partition(".")[2]))


# Words, which sympy would multiply letter by letter, and what it may not finish.
_COSTLY = re.compile(r"(?<![\\a-zA-Z{])[a-zA-Z]{4,}|\\(?:sum|prod|[a-z]*int|lim[a-z]*|Gamma)(?![a-zA-Z])")
_POWER = re.compile(
    r"(\S?) ?\^ ?(?:\{((?:[^{}]|\{[^{}]*\})*)\}|([-+]? ?\d+|\\[a-zA-Z]+(?: ?\{[^{}]*\})*|\([^()]*\)|[^{]))"
)
_FACTORIAL = re.compile(r"(?:(\d+)|\(([^()]*)\)|([^a-zA-Z ])) ?(?=!)")
_HUGE = re.compile(r"\\binom ?\{[^{}]*(?:\d{5}|\^)|\^ ?(?:\d+|\w|\{[^{}]*\}) ?\^")


def _readable(text: str) -> bool:
    """Whether reading and comparing this costs little: short, brackets not too deep, nothing that sympy writes out."""
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in "}])")
        deepest = max(deepest, depth)
    return len(text) <= LONGEST_EXPRESSION and deepest <= DEEPEST and not _COSTLY.search(text) and _affordable(text)


def _affordable(text: str) -> bool:
    """Whether sympy, which writes whole numbers out, can: not 9^{9^9}, (10^9)! or (2^{999})^{999}."""
    for digits, group, other in _FACTORIAL.findall(text):
        if other or len(digits) > 3 or (not digits and not re.search(r"(?<![\\a-zA-Z])[a-zA-Z](?![a-zA-Z])", group)):
            return False
    powers = _POWER.findall(text)
    if _HUGE.search(text) or len(powers) != text.count("^") - sum(braced.count("^") for _, braced, _ in powers):
        return False
    largest = repeated = 1
    for base, braced, single in powers:
        exponent = braced or single
        size = math.prod(max(1, int(digits)) for digits in re.findall(r"\d+", exponent))
        if "^" in exponent and size > 9:  # a tower: 2^{2^3} is small, 9^{9^9} is not
            return False
        if base in (")", "}", "]"):
            repeated *= size
        elif not base.isalpha():
            largest = max(largest, size)
    return largest * repeated <= LARGEST_POWER


def _equivalent(gold: str, given: str) -> bool:
    """Whether math-verify finds two tidy expressions equal.

    Its own time limits turn every score into zero outside of a main thread. They are off here.
    """
    if not _readable(given):
        return False
    wanted = _parsed(gold)
    if not wanted:
        raise ValueError(f"math-verify cannot read the reference answer {gold!r}: correct that row")
    try:
        verify = _math_verify()[1]
        return bool(verify(wanted, _parsed(given), timeout_seconds=None, allow_set_relation_comp=True))
    except MemoryError:
        raise
    except Exception:  # what sympy cannot handle is not the reference
        return False


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
