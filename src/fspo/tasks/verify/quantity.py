"""Plain numbers with their units: read exactly, and compared without sympy."""

import re
from dataclasses import dataclass
from fractions import Fraction

from fspo.tasks.verify.spelling import DOLLAR

__all__ = ["Quantity", "quantity"]

LONGEST_UNIT = 120
DECIMALS = 6  # so many digits of a rounded fraction are as good as the fraction

_INT = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d{1,3}(?: \d{3})+(?!\d)|\d+)"
_DECIMAL = rf"(?:{_INT}(?:\.\d*)?|\.\d+)"
_INSIDE = rf"\{{ ?([-+]? ?{_DECIMAL}) ?\}}"
_FRAC = rf"\\frac ?(?:{_INSIDE}|(\d)) ?(?:{_INSIDE}|(\d))"
_NUMBER = re.compile(
    rf"(?P<sign>[-+]?) ?(?P<money>[{DOLLAR}£€¥₹])? ?(?P<sign2>[-+]?) ?"
    rf"(?:(?P<whole>{_INT})? ?{_FRAC}"
    rf"|(?P<mixed>\d+) (?P<over>\d+) ?/ ?(?P<under>\d+)"
    rf"|\(?(?P<above>{_DECIMAL}) ?/ ?(?P<below>{_DECIMAL})\)?(?! ?[\d/])"
    rf"|(?P<decimal>{_DECIMAL})"
    r"(?:[eE](?P<e>[-+]?\d{1,3})(?![\da-zA-Z])"
    r"| ?(?:\\times|\\cdot|\*|x) ?10 ?\^ ?(?:\{ ?(?P<power>[-+]?\d{1,3}) ?\}|(?P<digit>[-+]?\d{1,3})))?)"
)
_WORD = re.compile(r"[a-zA-Z][a-zA-Z'-]*")
_UNIT = re.compile(
    rf"(?P<glued>[a-zA-Z]*)(?:\s|[a-zA-Z\u4e00-\u9fff'\-/.()*%{DOLLAR}£€¥₹]"
    r"|(?:(?<=[a-zA-Z])|(?<=[a-zA-Z] ))\^ ?\{? ?-?[1-4](?: ?\})?|\\cdot)*"
)
_DANGLING = re.compile(r"(?:[-/*(]|\\cdot)(?! ?[a-zA-Z(]|[1-4] ?\}?)")
_CHINESE = re.compile("[百千万亿十半零一二三四五六七八九不或和]")  # numbers and words that change the value
_MULTIPLES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
# Words that change the value, leave it open or make a sentence of it; anything else after a number is its unit.
_NO_UNIT = frozenset(
    re.findall(
        r"\S+",
        "or and not no nor neither either plus minus times divided multiplied squared cubed maybe perhaps possibly "
        "probably if but mod modulo base half third pi sqrt sin cos tan log ln exp wrong incorrect isn't aren't "
        "doesn't cannot can't otherwise unless except wait frac choose factorial negative",
    )
)
_KNOWN = {
    name: unit
    for unit, names in {
        "dollar": "dollar dollars usd buck bucks", "cent": "cent cents ¢", "euro": "euro euros eur",
        "yen": "yen", "rupee": "rupee rupees", "morning": "am", "afternoon": "pm",
        "pound": "pound pounds lb lbs gbp", "percent": "percent pct percentage", "degree": "degree degrees deg",
        "celsius": "celsius", "fahrenheit": "fahrenheit", "radian": "radian radians rad",
        "millimetre": "mm millimeter millimeters millimetre millimetres",
        "centimetre": "cm centimeter centimeters centimetre centimetres",
        "metre": "m meter meters metre metres", "kilometre": "km kilometer kilometers kilometre kilometres kph kmh",
        "inch": "in inch inches", "foot": "ft foot feet", "yard": "yd yds yard yards", "mile": "mi mile miles mph",
        "milligram": "mg milligram milligrams", "gram": "g gram grams", "kilogram": "kg kilogram kilograms kgs",
        "ounce": "oz ounce ounces", "ton": "ton tons tonne tonnes", "second": "s sec secs second seconds",
        "minute": "min mins minute minutes", "hour": "h hr hrs hour hours", "day": "day days", "week": "week weeks",
        "month": "month months", "year": "yr yrs year years", "millilitre": "ml milliliter milliliters millilitres",
        "litre": "l liter liters litre litres", "gallon": "gal gallon gallons", "quart": "qt quart quarts",
        "pint": "pint pints", "cup": "cup cups",
    }.items()
    for name in names.split()
}  # fmt: skip
_SHORT = {name for name in _KNOWN if len(name) <= 2} | set(
    re.findall(r"\S+", "a an of at by on to is it as my up am pm st nd rd th sq")
)
_MONEY = {DOLLAR: "dollar", "£": "pound", "€": "euro", "¥": "yen", "₹": "rupee"}
_POWERS = {"square": 2, "squared": 2, "sq": 2, "cubic": 3, "cubed": 3, "cu": 3}
_GLUED = frozenset(_KNOWN) - set("mghsl") - {"in", "percent"} | {"percent", "st", "nd", "rd", "th"}


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
    found = _NUMBER.match(text)
    if found is None:
        return None
    tail = text[found.end() :]
    factor, percent, unit = 1, False, _MONEY.get(found["money"] or "")
    if tail:
        read = _read_unit(tail)
        if read is None:
            return None
        factor, percent, named = read
        unit = unit or named
    value, decimals = _value(found)
    if value is None:
        return None
    if (found["sign"] == "-") != (found["sign2"] == "-"):
        value = -value
    return Quantity(value * factor, percent, None if unit == "percent" else unit, decimals)


def _value(found: re.Match[str]) -> tuple[Fraction | None, int | None]:
    """The size of the number, and its digits after the point."""
    if (text := found["decimal"]) is not None:
        size, decimals = _decimal(text)
        power = found["e"] or found["power"] or found["digit"]
        return (size * Fraction(10) ** int(power), None) if power else (size, decimals)
    if found["mixed"] is not None:
        whole, above, below = Fraction(found["mixed"]), Fraction(found["over"]), Fraction(found["under"])
    elif found["above"] is not None:
        whole, above, below = Fraction(0), _decimal(found["above"])[0], _decimal(found["below"])[0]
    else:
        parts = [part for part in found.groups()[4:8] if part is not None]
        whole = _decimal(found["whole"] or "0")[0]
        above, below = (_decimal(part)[0] for part in parts)
    return (whole + above / below if below else None), None


def _decimal(text: str) -> tuple[Fraction, int]:
    text = text.replace(",", "").replace(" ", "")
    decimals = len(text) - text.find(".") - 1 if "." in text else 0
    return Fraction(text if not text.endswith(".") else text[:-1]), decimals


def _read_unit(tail: str) -> tuple[int, bool, str | None] | None:
    """A multiple (million), whether it is per cent, and the unit; None if these words are no unit."""
    found = _UNIT.fullmatch(tail) if len(tail) <= LONGEST_UNIT else None
    if found is None or _DANGLING.search(tail) or _CHINESE.search(tail):
        return None
    words = [word.lower() for word in _WORD.findall(tail)]
    if words[:2] == ["per", "cent"]:
        words[:2] = ["percent"]
    glued = found["glued"].lower()
    if glued and glued not in _GLUED:
        return None
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
    percent = "%" in tail or unit == "percent"
    if "%" in tail.strip()[1:]:
        return None
    for sign, name in _MONEY.items():
        if sign in tail:
            unit = unit or name
    if unit is not None and unit != "percent" and (raised := re.search(r"\^ ?\{? ?([23])", tail)):
        power = int(raised[1])
    return factor, percent, unit if unit is None or power == 1 else f"{unit}^{power}"
