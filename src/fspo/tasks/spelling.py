"""One spelling of mathematics: Unicode and LaTeX write the same thing in many ways."""

import re
import unicodedata
from functools import lru_cache

DOLLAR = "\ue000"  # a dollar of money, apart from the $ that encloses LaTeX
_SYMBOLS = str.maketrans({
    "×": r"\times ", "⋅": r"\cdot ", "·": r"\cdot ", "÷": "/", "⁄": "/", "∕": "/", "∞": r"\infty ",
    "°": " degrees ", "º": " degrees ", "’": "'", "−": "-", "∛": r"\sqrt[3]",
    "≤": r"\le ", "≥": r"\ge ", "≠": r"\neq ", "≈": r"\approx ", "∈": r"\in ", "∪": r"\cup ", "∩": r"\cap ",
    "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
    "±": r"\pm ", "∅": r"\emptyset ", "⇒": r"\Rightarrow ", "→": r"\Rightarrow ",
})  # fmt: skip
_KINDS = {"Zs": " ", "Zl": " ", "Zp": " ", "Pd": "-", "Cf": "", "So": "", "Sk": "", "Mn": ""}
_COMMANDS_FOR = {
    name: command
    for command, names in {
        r"\frac": "dfrac tfrac cfrac nicefrac sfrac", r"\le ": "leqslant leq", r"\ge ": "geqslant geq", r"\neq ": "ne",
        "<": "lt", ">": "gt", r"\approx ": "simeq", r"\Rightarrow ": "implies rightarrow to", "(": "langle lbrack",
        r"\emptyset ": "varnothing", ")": "rangle rbrack", r"\{": "lbrace", r"\}": "rbrace", " degrees ": "degree",
        " ": "quad qquad space therefore checkmark square qed sim", ":": "colon", "%": "%",
        "": "left right big Big bigg Bigg bigl bigr Bigl Bigr displaystyle textstyle bf rm it large Large",
    }.items()
    for name in names.split()
}  # fmt: skip
_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:rm|bf|it|sf|bb|bin)|[mfh]?box|emph|operatorname\*?|boxed|bm|boldsymbol"
    r"|underline|ensuremath) ?\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}"
)
_BASES = ["two", "three", "four", "five", "six", "seven", "eight", "nine"]
_CURRENCY = {"US": DOLLAR, "EU": "€", "GB": "£", "IN": "₹", "Rs": "₹", "JP": "¥"}
_REPLACED = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:textcolor|color|[hv]?phantom|[hv]space\*?) ?\{[^{}]*\}", " "),
        (rf"^ *(USD?|EUR|GBP|INR|Rs\.?|JPY) *{DOLLAR}? *(?=[-+\d.])", lambda m: _CURRENCY[m[1][:2]]),
        (r"(?<!\\)\\! *", ""),
        (r"\{([,:])\}", r"\1"),
        (r"(?<!\\)\\[,;:> ()\[\]]|\\\\ *$", " "),
        (r"\\([a-zA-Z]+|%)", lambda m: _COMMANDS_FOR.get(m[1], m[0])),
        (r"(\\sqrt ?\[ ?\w+ ?\]) ?(\d+|[a-zA-Z])", r"\1{\2}"),
        (r"\\(frac|binom) ?(\\pi|[a-zA-Z\d]) ?(\d)", r"\\\1{\2}{\3}"),
        (r"\\sqrt ?(\\frac ?(?:\d ?\d|\{[^{}]*\} ?\{[^{}]*\}))", r"\\sqrt{\1}"),
        (r"(?<=\d) *\\frac ?\{ *([a-zA-Z]{2,}|[msghl]) *\} ?\{ *([a-zA-Z]{2,}|[msghl]) *\} *$", r" \1/\2"),
        (r"(?<=[\d ])\{ *([a-zA-Z][a-zA-Z ]+) *\} *$", r" \1"),
        (r"(\.\d*)\\(?:overline|bar|dot) ?\{? ?(\d{1,20}) ?\}?(?![\d\\])", lambda m: m[1] + m[2] * 9),
        (r"(?<![\d_])\d{1,3}(?:_\d{3})+(?![\d_])", lambda m: m[0].replace("_", "")),
        (r" *\(? *base +(\d{1,2}) *\)? *$", r"_{\1}"),
        (rf"(?<=_)(\{{? *)({'|'.join(_BASES)})(?= *\}}? *$)", lambda m: m[1] + str(_BASES.index(m[2]) + 2)),
        ("=>", r"\\Rightarrow "),
        (r"(?<=\d) ?\^ ?\{? ?o ?\}?(?![a-zA-Z])|\^ ?\{? ?\\circ ?\}?|\^ ?\{ ?degrees ?\}|\^ ?degrees", " degrees "),
        (r"(\\(?:sin|cos|tan|cot|sec|csc)) ?\(? ?(\d+(?:\.\d+)?) *degrees *\)?", r"\1(\\frac{\2\\pi}{180})"),
        (r"degrees *(?:(C)|F)(?![a-zA-Z])", lambda m: " celsius " if m[1] else " fahrenheit "),
        (r"(?<=[\w)}]) ?\*\* ?(?=[\w({-])", "^"),
        (r"(?<![\\a-zA-Z])sqrt ?(?:\(([^()]*)\)|\{([^{}]*)\}|(\d+))", r"\\sqrt{\1\2\3}"),
        (r"(?<![\\a-zA-Z])(?:(pi)|infinity)(?![a-zA-Z])", lambda m: r"\pi " if m[1] else r"\infty "),
        (r"(?i)(?<=\d) *([ap])\.? ?m\b\.?", lambda m: m[1].lower() + "m"),
        (r"\\\{ ?[a-z](?: *\\in *R)? *(?::|\\mid|\\vert|\|) ?(?=[^{}|]*(?:[<>=]|\\[lg]e))([^{}|]*)\\\}", r"\1"),
        (";", ","),
        ("  +", " "),
        (r"^[ *`\"':=,;]+|[ *`\"':=,;.]+$", ""),  # a point in front belongs to the number
        (r"^(?i:(?:the )?(?:final |correct )?(?:answer|option|choice) ?(?:is|:|=)? ?)(?=[\d\\$({[A-Z+-])", ""),
        (r"^\{((?:(?!\\choose)[^{}])*)\}$", r"\1"),
    )
]


@lru_cache(maxsize=4096)
def tidy(text: str) -> str:
    """The same mathematics in one spelling: ASCII and a few LaTeX commands, without delimiters and font commands."""
    if text.isascii() and text.isdigit():
        return text
    if not text.isascii():
        text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺]+", r"^{\g<0>}", re.sub("[₀-₉]+", r"_{\g<0>}", text))
        text = unicodedata.normalize("NFKC", text.translate(_SYMBOLS)).translate(_SYMBOLS)
        text = re.sub(r"[^\x00-\x7f]", lambda m: _KINDS.get(unicodedata.category(m[0]), m[0]), text)
        text = re.sub(r"√ ?(?:\(([^()]*)\)|\{([^{}]*)\}|(\d+|[a-zA-Zπ]))", r"\\sqrt{\1\2\3}", text)
    text = re.sub(r"[\s~]", " ", text).replace("\\$", DOLLAR).replace("$", " ")
    for _ in range(3):  # text inside text
        text = _TEXT.sub(r" \1 ", text)
    for pattern, replacement in _REPLACED:
        text = pattern.sub(replacement, text)
    return text.strip()
