"""Whether a final answer equals the reference: numbers with units exactly, words as words, all else by math-verify."""

import contextlib
import logging
import math
import re
import signal
import threading
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from fspo.tasks.verify.statements import LONGEST, Mode, final_answer

__all__ = ["equal", "reference", "same"]

SECONDS = 2.0  # of processor time for one answer
LONGEST_EXPRESSION = 400
LONGEST_UNIT = 120
DEEPEST = 16  # brackets inside each other
MOST_RELATIONS = 8
LARGEST_POWER = 20_000  # of a number: sympy computes powers to the last digit
DECIMALS = 6  # so many digits of a rounded fraction are as good as the fraction


def equal(gold: str, completion: str, mode: Mode = "boxed") -> bool:
    """Whether the final answer that the completion states equals the reference."""
    stated = final_answer(completion, mode)
    if stated is None:
        return False
    if same(gold, ", ".join(stated.parts)):
        return True
    # Boxes all over the text may together be the answer; one of several boxes is not.
    together = len(stated.parts) == 1 and 1 < len(stated.boxes) == 1 + len(_COMMA.findall(tidy(gold)))
    return together and same(gold, ", ".join(stated.boxes))


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


def same(gold: str, given: str) -> bool:
    """Whether two answers, each written alone, have the same value. What takes longer than `SECONDS` is wrong."""
    if not given or len(given) > LONGEST:
        return False
    if gold == given:
        return True
    wanted, answer = _read(gold), _read.__wrapped__(given)
    if wanted.number is not None and answer.number is not None:
        return wanted.number.equals(answer.number)
    if not answer.text:
        return False
    if wanted.words or wanted.text == answer.text:
        return _same_words(wanted.text, answer.text)
    if (verdict := _same_label(wanted.text, answer.text)) is not None:
        return verdict
    parsed_gold(wanted.expression)
    try:
        with limited():
            return _same_expression(wanted.expression, answer.expression)
    except _TimeOverError:
        return False


@dataclass(frozen=True)
class _Answer:
    """A tidy text, the number that it is, and whether it is words."""

    text: str
    number: "Quantity | None"
    words: bool

    @property
    def expression(self) -> str:
        """What math-verify compares: without the words of a unit, and numbers without theirs."""
        if self.number is not None:
            return str(self.number.value)
        unit = _UNIT_AFTER.search(self.text)
        return self.text[: unit.start()].strip() if unit and quantity("1 " + unit[1]) else self.text


@lru_cache(maxsize=4096)
def _read(text: str) -> _Answer:
    text = tidy(text)
    number = quantity(text)
    words = bool(number is None and _WORDS.fullmatch(text))
    return _Answer(text if words else _SPACED.sub("", text), number, words)


# --- one spelling: Unicode and LaTeX write the same thing in many ways ---

DOLLAR = "\ue000"  # a dollar of money, apart from the $ that encloses LaTeX
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
        r"\frac": "dfrac tfrac cfrac nicefrac sfrac xfrac", r"\binom": "dbinom tbinom", r"\le ": "leqslant leq leqq",
        r"\ge ": "geqslant geq geqq", r"\neq ": "ne", r"\approx ": "approxeq simeq cong doteq", "<": "lt", ">": "gt",
        r"\Rightarrow ": "implies therefore Longrightarrow longrightarrow rightarrow to", "(": "langle lbrack",
        ")": "rangle rbrack", r"\{": "lbrace", r"\}": "rbrace", r"\emptyset ": "varnothing", ":": "colon",
        " degrees ": "degree", " ": "quad qquad thinspace enspace space medspace checkmark sim blacksquare square qed",
        "": "left right big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr displaystyle textstyle limits bf rm it large "
        "Large mathstrut",
    }.items()
    for name in names.split()
}  # fmt: skip
_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:rm|bf|it|sf|bb|bin)|[mfh]?box|emph|operatorname\*?|boxed|bm|boldsymbol"
    r"|underline|ensuremath) ?\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}"
)
_SPECIAL = re.compile(r"[\\*={<>';:_^]|  |base|sqrt|pi|infinity|degrees|\d\.\d{3}\.")
_REPLACED = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:textcolor|color|[hv]?phantom|[hv]space\*?) ?\{[^{}]*\}", " "),
        (r",\\! *", ","),
        (r"\{([,:])\}", r"\1"),
        (r"(?<!\\)\\!", ""),
        (r"(?<!\\)\\[,;:> ()\[\]]|\\\\ *$", " "),
        (r"\\([a-zA-Z]+)", lambda m: _COMMANDS_FOR.get(m[1], m[0])),
        (r"\\binom ?(\d) ?(\d)", r"\\binom{\1}{\2}"),
        (r"\\log ?_ ?(\w) ", r"\\log_{\1}"),
        (r"\{([^{}=]*)\\over(?![a-zA-Z])([^{}=]*)\}|^([^{}=]*)\\over(?![a-zA-Z])([^{}=]*)$", r"\\frac{\1\3}{\2\4}"),
        (r"\{([^{}=]*)\\choose(?![a-zA-Z])([^{}=]*)\}", r"\\binom{\1}{\2}"),
        (r"(?<=\d) ?\\frac ?\{ ?([a-zA-Z]{2,}|[msghl]) ?\} ?\{ ?([a-zA-Z]{2,}|[msghl]) ?\}$", r" \1/\2"),
        (r"(\\sqrt ?\[ ?\w+ ?\]) ?([\da-zA-Z])", r"\1{\2}"),
        (r"^ ?\\\{ ?\\\} ?$", r"\\emptyset "),
        (r"\\begin ?\{array\} ?\{[lcr| ]*\}(.*?)\\end ?\{array\}", r"\\begin{pmatrix}\1\\end{pmatrix}"),
        (r"[(\[] ?(\\begin\{.?matrix\}.*?\\end\{.?matrix\}) ?[)\]]", r"\1"),
        (r"\\\{ ?[a-z](?: *\\in *R)? *(?::|\\mid|\\vert|\|) ?(?=[^{}|]*(?:[<>=]|\\[lg]e))([^{}|]*)\\\}", r"\1"),
        (r"(?<=[\d ])\{ ?([a-zA-Z][a-zA-Z ]+) ?\}$", r" \1"),
        (r"\\frac ?(\\pi|[a-zA-Z]) ?(\d)", r"\\frac{\1}{\2}"),
        (r"\\sqrt ?(\\frac ?(?:\d ?\d|\{[^{}]*\} ?\{[^{}]*\}))", r"\\sqrt{\1}"),
        (r"(?<=\d) ?\^ ?\{? ?o ?\}?(?![a-zA-Z])|\^ ?\{? ?\\circ ?\}?|\^ ?\{ ?degrees ?\}|\^ ?degrees", " degrees "),
        (r"(\\(?:sin|cos|tan|cot|sec|csc)) ?\(? ?(\d+(?:\.\d+)?) *degrees *\)?", r"\1(\\frac{\2\\pi}{180})"),
        (r"degrees *(?:(C)|F)(?![a-zA-Z])", lambda m: " celsius " if m[1] else " fahrenheit "),
        ("<=", r"\\le "),
        (">=", r"\\ge "),
        (r"\\not ?=|!=|=/=", r"\\neq "),
        ("=>", r"\\Rightarrow "),
        (r"\\%", "%"),
        (r"(?<![\w)}]) ?\+ ?(?=\\infty)", ""),
        (r"\(? ?base (\d{1,2}) ?\)?$", r"_{\1}"),
        (r"(?<![\w)}])\*\*([^*]*)\*\*", r"\1"),
        (r"(?<=[\w)}]) ?\*\* ?(?=[\w({-])", "^"),
        (r"(?<![\\a-zA-Z])sqrt ?(?:\(([^()]*)\)|\{([^{}]*)\}|(\d+))", r"\\sqrt{\1\2\3}"),
        (r"(?<![\\a-zA-Z])(?:(pi)|infinity)(?![a-zA-Z])", lambda m: r"\pi " if m[1] else r"\infty "),
        (r"(?<!\d)\d{1,3}(?:(?:_\d{3})+|(?:'\d{3})+|(?:\.\d{3}){2,})(?![\d.])", lambda m: re.sub(r"[_.']", "", m[0])),
        (r"(\d*)\.(\d*)\\(?:overline|bar|dot) ?(?:\{ ?(\d{1,20}) ?\}|(\d))(?![\d\\])", lambda m: _repeating(m)),
        (r";", ","),
        (r"  +", " "),
    )
]
_LABEL = re.compile(
    r"(?:the )?(?:final |correct )?(?:answer|option|choice) ?(?:is|:|=)? ?(?=[\d\\$({[A-Z+-])", re.IGNORECASE
)
_CURRENCY = {"USD": DOLLAR, "US$": DOLLAR, "EUR": "€", "GBP": "£", "INR": "₹", "Rs": "₹", "Rs.": "₹", "JPY": "¥"}
_CODE = re.compile(r"^ ?(USD|US\$|EUR|GBP|INR|Rs\.?|JPY) ?\$? ?(?=[-+\d.])")


def tidy(text: str) -> str:
    """The same mathematics in one spelling: ASCII and a few LaTeX commands, without delimiters and font commands."""
    if text.isascii() and text.isdigit():
        return text
    if not text.isascii():
        for sign, run in (("^", "[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+"), ("_", "[₀-₉]+")):
            text = re.sub(run, lambda m: sign + "{" + unicodedata.normalize("NFKC", m[0]).replace("−", "-") + "}", text)
        text = "".join(map(_ascii, text))
        text = re.sub(r"[√∛] ?(?=[\da-zA-Z({\\])", lambda m: r"\sqrt" if m[0][0] == "√" else r"\sqrt[3]", text)
        text = re.sub(r"(\\sqrt(?:\[3\])?)(?:\(([^()]*)\)|(\d+(?:\.\d+)?|[a-zA-Z]|\\pi))", r"\1{\2\3}", text)
    text = _money(re.sub(r"[\s~]", " ", text))
    if _SPECIAL.search(text):
        for _ in range(3):  # text inside text
            text = _TEXT.sub(r" \1 ", text)
        for pattern, replacement in _REPLACED:
            text = pattern.sub(replacement, text)
    text = _trimmed(text)
    text = text[label.end() :] if (label := _LABEL.match(text)) else text
    while text.startswith("{") and text.endswith("}") and _enclosed(text):
        text = _trimmed(text[1:-1])
    return text


@lru_cache(maxsize=4096)
def _ascii(character: str) -> str:
    """How ASCII and LaTeX write a character: digits of all scripts, fractions, Greek letters, dashes, spaces."""
    if character.isascii() or character in "£€¥₹":
        return character
    name, kind = unicodedata.name(character, ""), unicodedata.category(character)
    if name.startswith("VULGAR FRACTION"):
        value = Fraction(unicodedata.numeric(character)).limit_denominator(10)
        return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    if name.startswith("GREEK SMALL LETTER ") and name.count(" ") == 3:
        return f"\\{name.split()[-1].lower()} "
    if kind == "Nd":
        return str(unicodedata.decimal(character))
    return _SYMBOLS.get(character) or _KINDS.get(kind, unicodedata.normalize("NFKC", character))


def _repeating(period: re.Match[str]) -> str:
    """A decimal whose last digits repeat, as a fraction."""
    whole, fixed, repeated = period[1] or "0", period[2], period[3] or period[4]
    nines = (10 ** len(repeated) - 1) * 10 ** len(fixed)
    return rf"\frac{{{int(whole + fixed + repeated) - int(whole + fixed)}}}{{{nines}}}"


def _money(text: str) -> str:
    """Removes the $ of LaTeX. An escaped $ is money, and so is a single one before a number."""
    if code := _CODE.match(text.replace("\\$", "$")):
        return _CURRENCY[code[1]] + text.replace("\\$", "$")[code.end() :]
    text = text.replace("\\$", DOLLAR)
    if text.count("$") % 2:
        text = re.sub(r"\$(?= ?[-+]?[\d.])|(?<=\d)\$(?!.)", DOLLAR, text, count=1)
    return text.replace("$", " ").strip()


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


# --- words, choices such as (C), times of day, and digits of a number in another base ---

_WORDS = re.compile(r"\(?[A-Z]\)|(?=.*(?<![\\a-zA-Z])(?:[a-zA-Z]{3,}|[Nn]o)(?![a-zA-Z]))[^\d\\=<>^+*/]+")
_BASED = re.compile(r"\(? ?([\dA-F]+) ?\)? ?_ ?\{? ?(\w+) ?\}?")
_BASES = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9"}
_TIME = re.compile(r"(?:at )?(\d{1,2})(?: ?: ?(\d\d))?(?: ?: ?(\d\d))? ?(?:([ap])\.? ?m\b\.?)?", re.IGNORECASE)


def _same_words(gold: str, given: str) -> bool:
    """Whether two texts have the same words; a choice may have its value after it: (C) 18."""

    def plain(text: str) -> str:
        return re.sub(r"[\s.,;:'\"()]+", " ", text).strip().casefold()

    return plain(gold) == plain(given) or bool(_same_choice(gold, given))


def _same_choice(gold: str, given: str) -> re.Match[str] | None:
    choice = re.fullmatch(r"\(?([A-Z])\)?", gold)
    return re.match(rf"\(?{choice[1]}[).:](?:\s|$)|\({choice[1]}\)", given) if choice else None


def _same_label(gold: str, given: str) -> bool | None:
    """The verdict where the reference is a choice, a time of day or a number in another base; None of anything else."""
    if _same_choice(gold, given):
        return True
    hour, other = _TIME.fullmatch(gold), _TIME.fullmatch(given)
    if hour and other and (hour[2] or hour[4]) and (other[2] or other[4]):
        half, other_half = (hour[4] or "").lower(), (other[4] or "").lower()
        times = [[int(part or 0) for part in time.group(1, 2, 3)] for time in (hour, other)]
        return times[0] == times[1] and (half == other_half or "" in (half, other_half))
    wanted, answer = _BASED.fullmatch(gold), _BASED.fullmatch(given)
    if wanted and (answer or given.isalnum()):
        digits, base = (answer[1], answer[2]) if answer else (given, wanted[2])
        return wanted[1] == digits and _BASES.get(wanted[2], wanted[2]) == _BASES.get(base, base)
    if answer and gold.isdigit():
        base = _BASES.get(answer[2], answer[2])
        try:
            return int(answer[1], int(base)) == int(gold)
        except ValueError:
            return False
    return None


# --- numbers with their units, exactly and without sympy ---

_INT = r"(?:[1-9]\d{0,2}(?:,\d{3})+(?!\d)|\d{1,3}(?: \d{3})+(?!\d)|\d+)"
_DECIMAL = rf"(?:{_INT}(?:\.\d*)?|\.\d+)"
_INSIDE = rf"\{{ ?([-+]? ?{_DECIMAL}) ?\}}"
_NUMBER = re.compile(
    rf"(?P<sign>[-+]?) ?(?P<money>[{DOLLAR}£€¥₹])? ?(?P<sign2>[-+]?) ?"
    rf"(?:(?P<whole>{_INT})? ?\\frac ?(?:{_INSIDE}|(\d)) ?(?:{_INSIDE}|(\d))"
    rf"|(?P<mixed>\d+) (?P<over>\d+) ?/ ?(?P<under>\d+)"
    rf"|\(?(?P<above>{_DECIMAL}) ?/ ?(?P<below>{_DECIMAL})\)?(?! ?[\d/])"
    rf"|(?P<decimal>{_DECIMAL})"
    r"(?:[eE](?P<e>[-+]?\d{1,3})(?![\da-zA-Z])"
    r"| ?(?:\\times|\\cdot|\*|x) ?10 ?\^ ?(?:\{ ?(?P<power>[-+]?\d{1,3}) ?\}|(?P<digit>[-+]?\d{1,3})))?)"
)
_UNIT = re.compile(
    rf"(?P<glued>[a-zA-Z]*)(?:\s|[a-zA-Z\u4e00-\u9fff'\-/.()*%{DOLLAR}£€¥₹]"
    r"|(?:(?<=[a-zA-Z])|(?<=[a-zA-Z] ))\^ ?\{? ?-?[1-4](?: ?\})?|\\cdot)*"
)
_UNIT_AFTER = re.compile(r"(?<=[\d})a-z]) ((?:[a-zA-Z]{2,}[ /])*[a-zA-Z]{2,}(?:\^ ?\{?[23]\}?)?)$")
_DANGLING = re.compile(r"(?:[-/*(]|\\cdot)(?! ?[a-zA-Z(]|[1-4] ?\}?)")
_CHINESE = re.compile("[百千万亿十半零一二三四五六七八九不或和]")  # numbers and words that change the value
_MULTIPLES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
# Words that change the value, leave it open or make a sentence of it; anything else after a number is its unit.
_NO_UNIT = frozenset(
    ["or", "and", "not", "no", "nor", "neither", "either", "plus", "minus", "times", "divided", "multiplied", "squared", "cubed", "maybe", "perhaps", "possibly", "probably", "if", "but", "mod", "modulo", "base", "half", "third", "pi", "sqrt", "sin", "cos", "tan", "log", "ln", "exp", "wrong", "incorrect", "isn't", "aren't", "doesn't", "cannot", "can't", "otherwise", "unless", "except", "wait", "frac", "choose", "factorial", "negative"]
)
_KNOWN = {
    name: names.split()[0]
    for names in (
        "dollar dollars usd buck bucks", "cent cents ¢", "euro euros eur", "yen", "rupee rupees", "am", "pm",
        "pound pounds lb lbs gbp", "percent pct percentage", "degree degrees deg", "celsius", "fahrenheit",
        "radian radians rad", "millimeter mm millimeters millimetre millimetres",
        "centimeter cm centimeters centimetre centimetres", "meter m meters metre metres",
        "kilometer km kilometers kilometre kilometres kph kmh", "inch in inches", "foot ft feet", "yard yd yds yards",
        "mile mi miles mph", "milligram mg milligrams", "gram g grams", "kilogram kg kilograms kgs", "ounce oz ounces",
        "ton tons tonne tonnes", "second s sec secs seconds", "minute min mins minutes", "hour h hr hrs hours",
        "day days", "week weeks", "month months", "year yr yrs years", "milliliter ml milliliters millilitres",
        "liter l liters litre litres", "gallon gal gallons", "quart qt quarts", "pint pints", "cup cups",
    )
    for name in names.split()
}  # fmt: skip
_SHORT = {name for name in _KNOWN if len(name) <= 2} | set(["a", "an", "of", "at", "by", "on", "to", "is", "it", "as", "my", "up", "st", "nd", "rd", "th", "sq"])
_MONEY = {DOLLAR: "dollar", "£": "pound", "€": "euro", "¥": "yen", "₹": "rupee"}
_POWERS = {"square": 2, "squared": 2, "sq": 2, "cubic": 3, "cubed": 3, "cu": 3}
_GLUED = (frozenset(_KNOWN) - set("mghsl") - {"in"}) | {"st", "nd", "rd", "th"}


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
        if None not in units and len(units) > 1 and not ("degree" in units and units & {"celsius", "fahrenheit"}):
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
    number = _NUMBER.match(text)
    unit = number and _read_unit(text[number.end() :])
    if number is None or unit is None:
        return None
    factor, percent, name = unit
    value, decimals = _value(number)
    if value is None:
        return None
    if (number["sign"] == "-") != (number["sign2"] == "-"):
        value = -value
    return Quantity(value * factor, percent, _MONEY.get(number["money"] or "", name), decimals)


def _value(number: re.Match[str]) -> tuple[Fraction | None, int | None]:
    """The size of the number, and its digits after the point."""
    if (text := number["decimal"]) is not None:
        power = number["e"] or number["power"] or number["digit"]
        decimals = len(text.partition(".")[2]) if power is None else None
        return _fraction(text) * Fraction(10) ** int(power or 0), decimals
    if number["mixed"] is not None:
        whole, above, below = number.group("mixed", "over", "under")
    elif number["above"] is not None:
        whole, above, below = "0", number["above"], number["below"]
    else:
        whole = number["whole"] or "0"
        above, below = (part for part in number.groups()[4:8] if part is not None)
    return (_fraction(whole) + _fraction(above) / _fraction(below) if _fraction(below) else None), None


def _fraction(text: str) -> Fraction:
    return Fraction(text.replace(",", "").replace(" ", "").removesuffix("."))


def _read_unit(tail: str) -> tuple[int, bool, str | None] | None:
    """A multiple (million), whether it is per cent, and the unit; None if these words are no unit."""
    if not tail:
        return 1, False, None
    words_after = _UNIT.fullmatch(tail) if len(tail) <= LONGEST_UNIT else None
    if words_after is None or _DANGLING.search(tail) or _CHINESE.search(tail) or "%" in tail.strip()[1:]:
        return None
    glued = words_after["glued"].lower()
    if glued and glued not in _GLUED:
        return None
    words = re.findall(r"[a-z][a-z'-]*", tail.lower().replace("per cent", "percent"))
    factor, unit, power = 1, None, 1
    for k, word in enumerate(words):
        if word in _MULTIPLES and k == 0:
            factor = _MULTIPLES[word]
        elif word in _POWERS and (word[-1] != "d" or unit is not None):
            power = _POWERS[word]
        elif word in _NO_UNIT or (len(word) <= 2 and word not in _SHORT) or word in _MULTIPLES:
            return None
        elif unit is None:
            unit = _KNOWN.get(word)
    if unit == "percent" or "%" in tail:
        return factor, True, None
    unit = unit or next((name for sign, name in _MONEY.items() if sign in tail), None)
    if raised := re.search(r"\^ ?\{? ?([23])", tail):
        power = int(raised[1])
    return factor, False, f"{unit}^{power}" if unit and power > 1 else unit


# --- everything else: by math-verify, within limits that are checked before anything is parsed ---

_RELATION = re.compile(r"\\(?:neq|le|ge|approx|equiv|in|Rightarrow)(?![a-zA-Z])|[<>]|(?<![<>!:])=")
_COMMA = re.compile(r",(?: (?:and|or)(?![a-zA-Z]))?|(?<![a-zA-Z])(?:and|or)(?![a-zA-Z])|\\(?:lor|vee)(?![a-zA-Z])")
_SPACED = re.compile(r"(?<=[\d})]) (?=[a-zA-Z](?![a-zA-Z]))")
_NEGATED = re.compile(
    r"\b(?:not|no|never|isn't|neither|nor|cannot|suppose|assume|assuming|if|try|maybe|perhaps|guess|unless|wrong|false"
    r"|incorrect)\b|\\(?:not|notin|neg|lnot)(?![a-zA-Z])",
    re.IGNORECASE,
)
_INEQUALITIES = {"\\neq", "<", ">", "\\le", "\\ge", "\\equiv"}


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
        if "\\cup" in gold and (rays := _COMMA.split(given))[1:]:  # x < 1 or x > 2
            unions = gold.split("\\cup")
            return len(unions) == len(rays) and all(any(equivalent(a, b) for b in rays) for a in unions)
        return (gold[:1] in ("(", "[") or "\\cup" in gold) and equivalent(gold, given)
    if _INEQUALITIES & set(asked) and not relations and given[:1] not in ("(", "[") and "\\cup" not in given:
        return False
    if not asked and not relations and not re.search(r"\\(?:cup|setminus|infty|pm)", gold + given):
        if len(_COMMA.findall(gold)) != len(_COMMA.findall(given)):
            return False
    if _enclosed(gold) and _enclosed(given) and "," in gold and "matrix" not in gold:
        if gold[0] != given[0] or gold[-1] != given[-1]:
            return False
    return equivalent(gold, given)


def _listed(text: str) -> str:
    """`1 \\pm 2` as the list of its two values, and `y = 2, x = 1` as a pair in the order of the letters."""
    if "\\pm" in text and "\\mp" not in text and "," not in text:
        return f"{re.sub(_SIGN, '+', text)}, {re.sub(_SIGN, '-', text)}"
    named = [re.fullmatch(r" ?([a-zA-Z]) ?=([^=<>]+)", part) for part in _COMMA.split(text)]
    if len(named) > 1 and all(named) and len({match[1] for match in named if match}) == len(named):
        return "(" + ", ".join(value for _, value in sorted(match.groups() for match in named if match)) + ")"
    return text


_SIGN = re.compile(r"\\pm(?![a-zA-Z])|\+/-|\+-")


def _same_chain(gold: str, given: str) -> bool:
    """A chain `x = 2 + 3 = 5` is 5 if all its terms are: 2 + 2 = 42 is not 42."""
    flat = _flat(given)
    signs = _RELATION.findall(flat)
    edges = [0, *(edge for match in _RELATION.finditer(flat) for edge in match.span()), len(given)]
    terms = [given[a:b].strip() for a, b in zip(edges[::2], edges[1::2], strict=True)]
    if "\\Rightarrow" in signs:  # 18 -> 19 states no value
        return quantity(terms[0]) is None and _same_value(gold, given.rsplit("\\Rightarrow", 1)[1].strip())
    name, equation, value = gold.rpartition("=" if "=" in gold else "\\in")
    name, value = name.strip(), value.strip()
    if equation and ("=" in name or not _is_name(name) or (len(terms) == 2 and equivalent(gold, given))):
        return equivalent(gold, given)
    if not terms[0]:  # as in "= 5"
        terms, signs = terms[1:], signs[1:]
    named = len(terms) > 1 and _is_name(terms[0])
    if named and len(name) == len(terms[0]) == 1 and name != terms[0]:
        return False
    if named:
        terms, signs = terms[1:], signs[1:]
    elif len(terms) == 2 and re.fullmatch("[a-zA-Z]", terms[1]):  # 5 = x
        terms, signs = terms[:1], []
    if not all(terms) or not _same_value(value, terms[-1]):
        return False
    for term, sign in zip(terms, signs, strict=False):
        letters = re.search(r"[a-zA-Z]", re.sub(r"\\[a-zA-Z]+|degrees", "", term))
        if (letters and named) or (sign == "\\approx" and _near(term, terms[-1])):
            continue
        if not _same_value(value, re.sub(r"(?<=[\d)]) ?x ?(?=[\d(.])", "*", term)):
            return False
    return True


def _same_value(gold: str, given: str) -> bool:
    wanted, answer = _Answer(gold, quantity(gold), False), _Answer(given, quantity(given), False)
    if wanted.number is not None and answer.number is not None:
        return wanted.number.equals(answer.number)
    return _same_expression(wanted.expression, answer.expression)


def _is_name(text: str) -> bool:
    """Whether this names something (x, f(2), a + b, \\angle ABC) and has no value of its own as 2 + 2 has."""
    if re.search(r"[.!?;]\s", text) or len(text.split()) > 8 or "\\sqrt" in text or text == "\\pi":
        return False
    bare = re.sub(r"[_^] ?(?:\{[^{}]*\}|\w)|(?<=[a-zA-Z}])\([^()]*\)|\\[a-zA-Z]+", "", text)
    return not re.search(r"\d", bare) and bool(re.search("[a-zA-Z]", text))


def _near(first: str, second: str) -> bool:
    """Whether two expressions without names differ by at most 5 %, as what is rounded and the result."""
    if not readable(first) or not readable(second):
        return False
    try:
        a, b = (complex(_parsed(text)[0].evalf()) for text in (first, second))
    except (TypeError, AttributeError, IndexError):  # an expression with names
        return False
    return abs(a - b) <= max(0.05 * abs(a), 0.5 * 10.0 ** -len(second.partition(".")[2]))


_COMMANDS = frozenset(
    ["frac", "sqrt", "pi", "infty", "pm", "mp", "cdot", "times", "div", "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "log", "ln", "exp", "lg", "binom", "choose", "le", "ge", "neq", "in", "notin", "cup", "cap", "setminus", "emptyset", "varnothing", "approx", "equiv", "pmod", "bmod", "mod", "begin", "end", "theta", "alpha", "beta", "gamma", "delta", "epsilon", "lambda", "mu", "nu", "omega", "phi", "psi", "rho", "sigma", "tau", "varphi", "zeta", "eta", "xi", "chi", "kappa", "Gamma", "Delta", "Omega", "Phi", "Theta", "Lambda", "Sigma", "Pi", "mathbb", "mathbf", "vec", "overline", "bar", "hat", "lfloor", "rfloor", "lceil", "rceil", "to", "Rightarrow", "land", "lor", "wedge", "vee", "ldots", "dots", "cdots", "max", "min", "gcd", "lcm", "deg", "det", "vert", "lvert", "rvert", "mid", "angle", "triangle", "overrightarrow", "prime", "circ", "forall", "exists"]
)
_COMMAND = re.compile(r"\\([a-zA-Z]+)")
_POWER = re.compile(r"(\S?) ?\^ ?(?:\{((?:[^{}]|\{[^{}]*\})*)\}|(\d+|[^{]))")
_FACTORIAL = re.compile(r"(?:(\d+)|\(([^()]*)\)|([^a-zA-Z ])) ?(?=!)")
_HUGE = re.compile(r"\\binom ?\{[^{}]*(?:\d{5}|\^)|\^ ?(?:\d+|\w|\{[^{}]*\}) ?\^")
_STRANGE = re.compile(
    r"[^\w\s\\{}()\[\]|^+\-*/=<>.,;:!'&]|\d \d|\d\.\d*\.|\d{60}|[+*/^=]{3}|!{3}|[-+*/^=(,]$|--|\{\}|[a-zA-Z]{4,}"
)


def readable(text: str) -> bool:
    """Whether this may be mathematics: short, balanced, of known commands, without words. Takes linear time."""
    if not text or len(text) > LONGEST_EXPRESSION or not any(c.isalnum() for c in text):
        return False
    if re.search(r"\\(?:times|cdot|div|pm|mp|frac|sqrt|le|ge|neq|in|cup|cap|to|log|ln)$", text):
        return False
    if any(name not in _COMMANDS for name in _COMMAND.findall(text)):
        return False
    bare = _COMMAND.sub(" | ", re.sub(r"(?:begin|end)\{[a-z]*matrix\}", " ", text))  # a command separates: 3\\cdot5
    if _STRANGE.search(bare.strip()):
        return False
    depth = 0
    for character in text.replace("\\{", "").replace("\\}", ""):
        depth += (character == "{") - (character == "}")
        if not 0 <= depth <= DEEPEST:
            return False
    return depth == 0 and _affordable(text)


def _affordable(text: str) -> bool:
    """Whether sympy, which writes whole numbers out, can: not 9^{9^9}, (10^9)! or (2^{999})^{999}."""
    for digits, group, other in _FACTORIAL.findall(text):
        if other or len(digits) > 3 or (not digits and not re.search(r"(?<![\\a-zA-Z])[a-zA-Z](?![a-zA-Z])", group)):
            return False
    if _HUGE.search(text):
        return False
    largest = repeated = 1
    powers = _POWER.findall(text)
    for base, braced, single in powers:
        power = _bound(braced or single)
        if base in (")", "}", "]"):
            repeated *= power
        elif not base.isalpha():
            largest = max(largest, power)
    return len(powers) == len(re.findall(r"\^", text)) and largest * repeated <= LARGEST_POWER


def _bound(exponent: str) -> int:
    """A number that an exponent of whole numbers does not exceed by much."""
    numbers = [int(digits) if len(digits) < 7 else LARGEST_POWER + 1 for digits in re.findall(r"\d+", exponent)]
    size = math.prod(max(1, number) for number in numbers)
    if "^" not in exponent or not numbers:
        return size
    return int(max(numbers) ** size) if size < 64 else LARGEST_POWER + 1


def equivalent(gold: str, given: str) -> bool:
    """Whether two tidy expressions have the same value, by math-verify.

    Its own time limits turn every score into zero outside of a main thread. They are off here.
    """
    from math_verify import verify

    if not readable(given):
        return False
    try:
        return bool(verify(parsed_gold(gold), _parsed(given), timeout_seconds=None, allow_set_relation_comp=True))
    except MemoryError:
        raise
    except Exception:  # what sympy cannot handle is not the reference
        return False


@lru_cache(maxsize=4096)
def parsed_gold(text: str) -> list[Any]:
    """The reference, parsed; raises `ValueError` if it cannot be."""
    parsed = _parsed(text)
    if not parsed:
        raise ValueError(f"math-verify cannot read the reference answer {text!r}: correct that row")
    return parsed


def _parsed(text: str) -> list[Any]:
    try:
        from latex2sympy2_extended import NormalizationConfig
        from math_verify import LatexExtractionConfig, parse
    except ImportError:
        raise ValueError("question-answer tasks need the package math-verify: pip install 'fspo[tasks]'") from None
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    spelling = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none")
    how = [LatexExtractionConfig(normalization_config=spelling)]  # the other kind would find the 5 in "5 -"
    parsed: list[Any] = parse(f"${text}$", extraction_config=how, parsing_timeout=None)
    return parsed


class _TimeOverError(BaseException):
    """Not an `Exception`, which sympy and math-verify would catch."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
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
