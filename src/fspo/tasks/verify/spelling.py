"""One spelling for mathematics: Unicode and LaTeX have several ways to write the same thing."""

import re

__all__ = ["DOLLAR", "LONGEST", "enclosed", "tidy", "top_level"]

LONGEST = 1000  # characters of a final answer; a longer one is not an answer
DEEPEST = 16  # brackets inside each other
DOLLAR = "\ue000"  # a dollar of money, apart from the $ that encloses LaTeX

_SPACES = "\t\n\r\x0b\x0c\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000~"  # noqa: E501
_INVISIBLE = "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\u2061\u2062\u2063\u2064\ufeff"
_MINUS = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d"
_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n", strict=True))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_FRACTIONS = {
    "½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4), "⅕": (1, 5), "⅖": (2, 5), "⅗": (3, 5),
    "⅘": (4, 5), "⅙": (1, 6), "⅚": (5, 6), "⅐": (1, 7), "⅛": (1, 8), "⅜": (3, 8), "⅝": (5, 8), "⅞": (7, 8),
    "⅑": (1, 9), "⅒": (1, 10),
}  # fmt: skip
_SYMBOLS = {
    "×": r"\times ", "⋅": r"\cdot ", "·": r"\cdot ", "∙": r"\cdot ", "÷": "/", "⁄": "/", "∕": "/", "π": r"\pi ",
    "∞": r"\infty ", "°": " degrees ", "º": " degrees ", "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ",
    "≠": r"\neq ", "≈": r"\approx ", "≅": r"\approx ", "∈": r"\in ", "∪": r"\cup ", "∩": r"\cap ", "±": r"\pm ",
    "∅": r"\emptyset ", "⇒": r"\Rightarrow ", "→": r"\to ", "％": "%", "﹪": "%", "＝": "=", "，": ",", "（": "(",
    "）": ")", "＋": "+", "；": ";", "。": ".", "＄": "$", "＜": "<", "＞": ">", "⟨": "(", "⟩": ")", "θ": r"\theta ",
    "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "λ": r"\lambda ", "φ": r"\phi ", "ω": r"\omega ", "’": "'",
    "∗": "*", "＊": "*", "／": "/", "．": ".", "：": ":", "✓": "", "✅": "", "ℝ": "R", "ℤ": "Z", "ℕ": "N", "ℚ": "Q",
    "ℂ": "C", "∣": "|",
}  # fmt: skip
_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys(_SPACES, " "),
        **dict.fromkeys(_INVISIBLE, ""),
        **dict.fromkeys(_MINUS, "-"),
        **{sign: rf"\frac{{{a}}}{{{b}}}" for sign, (a, b) in _FRACTIONS.items()},
        # digits of other scripts: full width, Arabic, Persian, Devanagari, Bengali, and the bold and double-struck ones
        **{
            chr(first + k): str(k % 10)
            for first, count in ((0xFF10, 10), (0x660, 10), (0x6F0, 10), (0x966, 10), (0x9E6, 10), (0x1D7CE, 50))
            for k in range(count)
        },
        **_SYMBOLS,
    }
)
_PICTURES = re.compile("[\u2190-\u21ff\u2600-\u27bf\ufe0f\U0001f000-\U0001faff]| !$")
_RAISED = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+")
_LOWERED = re.compile(f"[{''.join(_SUBSCRIPTS)}]+")
_ROOT = re.compile(r"([√∛∜]) ?(\d+(?:\.\d+)?|[a-zA-Z]|\([^()]*\)|\{[^{}]*\}|\\pi)")
_ROOTS = {"√": r"\sqrt", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]"}
_TEXT = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|texttt|textnormal|mathrm|mathbf|mathit|mathsf|mathbb|mbox|emph|rm|bf"
    r"|operatorname\*?|fbox|boxed|hbox|bm|boldsymbol|underline|mathbin|ensuremath) ?\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}"
)
_REPLACED = [
    (re.compile(r"\\(?:textcolor|color|[hv]?phantom|[hv]space\*?) ?\{[^{}]*\}"), " "),
    (re.compile(r",\\! *"), ","),
    (re.compile(r"(?<!\\)\\!"), ""),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"(?<!\\)\\[,;:> ]|\\(?:quad|qquad|thinspace|enspace|space|medspace)(?![a-zA-Z])"), " "),
    (re.compile(r"(?<!\\)\\[()\[\]]"), " "),
    (
        re.compile(
            r"\\(?:left|right|[bB]ig+[lrm]?|displaystyle|textstyle|limits|nolimits|bf|rm|tt|it|mathstrut"
            r"|tiny|small|normalsize|large|Large|LARGE|huge|Huge)(?![a-zA-Z])"
        ),
        "",
    ),
    (re.compile(r"\\(?:[dtc]frac|nicefrac|sfrac|xfrac)(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\[dt]binom(?![a-zA-Z])"), r"\\binom"),
    (re.compile(r"\\binom ?(\d) ?(\d)"), r"\\binom{\1}{\2}"),
    (
        re.compile(r"\{([^{}=]*)\\over(?![a-zA-Z])([^{}=]*)\}|^([^{}=]*)\\over(?![a-zA-Z])([^{}=]*)$"),
        r"\\frac{\1\3}{\2\4}",
    ),
    (re.compile(r"\{([^{}=]*)\\choose(?![a-zA-Z])([^{}=]*)\}"), r"\\binom{\1}{\2}"),
    (re.compile(r"(?<=\d) ?\\frac ?\{ ?([a-zA-Z]{2,}|[msghl]) ?\} ?\{ ?([a-zA-Z]{2,}|[msghl]) ?\}$"), r" \1/\2"),
    (re.compile(r"\\log ?_ ?(\w) "), r"\\log_{\1}"),
    (re.compile(r"(\\sqrt ?\[ ?\w+ ?\]) ?([\da-zA-Z])"), r"\1{\2}"),
    (re.compile(r"\\colon(?![a-zA-Z])|\{:\}"), ":"),
    (re.compile(r"\\varnothing(?![a-zA-Z])|^ ?\\\{ ?\\\} ?$"), r"\\emptyset "),
    (
        re.compile(r"(?:\( ?|\[ ?|(?<!\\))\\begin ?\{array\} ?\{[lcr| ]*\}(.*?)\\end ?\{array\}(?: ?[)\]])?"),
        r"\\begin{pmatrix}\1\\end{pmatrix}",
    ),
    (re.compile(r"\\\{ ?[a-z](?: *\\in *R)? *(?::|\\mid|\\vert|\|) ?(?=[^{}|]*(?:[<>=]|\\[lg]e))([^{}|]*)\\\}"), r"\1"),
    (re.compile(r"(?<=\d) ?\^ ?\{? ?o ?\}?(?![a-zA-Z])"), " degrees "),
    (re.compile(r"(?<=[\d ])\{ ?([a-zA-Z][a-zA-Z ]+) ?\}$"), r" \1"),
    (re.compile(r"\\frac ?(\\pi|[a-zA-Z]) ?(\d)"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\sqrt ?(\\frac ?(?:\d ?\d|\{[^{}]*\} ?\{[^{}]*\}))"), r"\\sqrt{\1}"),
    (re.compile(r"\\\\ *$|\\(?:checkmark|sim|blacksquare|square|qed)(?![a-zA-Z])"), " "),
    (re.compile(r"\^ ?\{? ?\\circ ?\}?|\\degree(?![a-zA-Z])|\^ ?\{ ?degrees ?\}|\^ ?degrees"), " degrees "),
    (
        re.compile(r"(\\(?:sin|cos|tan|cot|sec|csc)) ?\(? ?(\d+(?:\.\d+)?) *degrees *\)?"),
        r"\1(\\frac{\2\\pi}{180})",
    ),
    (re.compile(r"degrees *C(?![a-zA-Z])"), " celsius "),
    (re.compile(r"degrees *F(?![a-zA-Z])"), " fahrenheit "),
    (re.compile(r"\\(?:leqslant|leq|leqq)(?![a-zA-Z])|<="), r"\\le "),
    (re.compile(r"\\(?:geqslant|geq|geqq)(?![a-zA-Z])|>="), r"\\ge "),
    (re.compile(r"\\lt(?![a-zA-Z])"), "<"),
    (re.compile(r"\\gt(?![a-zA-Z])"), ">"),
    (re.compile(r"\\not ?=|\\ne(?![a-zA-Z])|!=|=/="), r"\\neq "),
    (re.compile(r"\\(?:approxeq|simeq|cong|doteq)(?![a-zA-Z])"), r"\\approx "),
    (
        re.compile(r"\\(?:implies|therefore|Longrightarrow|longrightarrow|rightarrow|to)(?![a-zA-Z])|=>"),
        r"\\Rightarrow ",
    ),
    (re.compile(r"\\l(?:angle|brack)(?![a-zA-Z])"), "("),
    (re.compile(r"\\r(?:angle|brack)(?![a-zA-Z])"), ")"),
    (re.compile(r"\\lbrace(?![a-zA-Z])"), r"\\{"),
    (re.compile(r"\\rbrace(?![a-zA-Z])"), r"\\}"),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"(?<![\w)}]) ?\+ ?(?=\\infty)"), ""),
    (re.compile(r"\(? ?base (\d{1,2}) ?\)?$"), r"_{\1}"),
    (re.compile(r"(?<![\w)}])\*\*([^*]*)\*\*"), r"\1"),
    (re.compile(r"(?<=[\w)}]) ?\*\* ?(?=[\w({-])"), "^"),
    (re.compile(r"  +"), " "),
]
_BASES = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "eleven": 11,
    "twelve": 12, "sixteen": 16,
}  # fmt: skip
_BASE = re.compile(rf"_ ?\{{? ?({'|'.join(_BASES)}) ?\}}?$")
_PERIOD = re.compile(r"(\d*)\.(\d*)\\(?:overline|bar|dot) ?(?:\{ ?(\d{1,20}) ?\}|(\d))(?![\d\\])")
_NAMED = re.compile(r"(?<![\\a-zA-Z])(?:sqrt ?(?:\(([^()]*)\)|\{([^{}]*)\}|(\d+))|(pi)|(infinity))(?![a-zA-Z])")
_LABEL = re.compile(
    r"(?:the )?(?:final |correct )?(?:answer|option|choice) ?(?:is|:|=)? ?(?=[\d\\$({[A-Z+-])", re.IGNORECASE
)
_GROUPED = re.compile(r"\d{1,3}(?:_\d{3})+(?!\d)|\d{1,3}(?:\.\d{3}){2,}(?![\d.])|\d{1,3}(?:'\d{3})+(?!\d)")
_CURRENCY = {"USD": DOLLAR, "US$": DOLLAR, "EUR": "€", "GBP": "£", "INR": "₹", "Rs": "₹", "Rs.": "₹", "JPY": "¥"}
_CODE = re.compile(r"^ ?(USD|US\$|EUR|GBP|INR|Rs\.?|JPY) ?\$? ?(?=[-+\d.])")
_START, _END = " *`\"':=,;", " *`\"':=,;."  # a point in front belongs to the number


def tidy(text: str) -> str:
    """The same mathematics in one spelling: ASCII and a few LaTeX commands, without delimiters and font commands.

    Brackets that are nested deeper than any answer give an empty text.
    """
    if text.isascii() and (text.isdigit() or (text.isalnum() and not _NAMED.search(text))):
        return text
    if not text.isascii():
        text = _RAISED.sub(lambda m: "^{" + "".join(_SUPERSCRIPTS[c] for c in m[0]) + "}", text)
        text = _LOWERED.sub(lambda m: "_{" + "".join(_SUBSCRIPTS[c] for c in m[0]) + "}", text)
        text = text.translate(_CHARACTERS)
        text = _ROOT.sub(lambda m: f"{_ROOTS[m[1]]}{{{m[2].strip('(){}')}}}", text)
    else:
        text = text.translate(_CHARACTERS)
    if sum(map(text.count, "([{")) > DEEPEST and max((depth for _, depth in _depths(text)), default=0) > DEEPEST:
        return ""
    text = _money(_PICTURES.sub("", text))
    if "_" in text or "'" in text or text.count(".") > 1:
        text = _GROUPED.sub(lambda m: re.sub(r"[_.']", "", m[0]), text)
    if (
        "\\" in text
        or "*" in text
        or "=" in text
        or "{" in text
        or "base" in text
        or " degrees " in text
        or "  " in text
    ):
        for _ in range(3):  # text inside text
            if "\\" not in text or (spelled := _TEXT.sub(r" \1 ", text)) == text:
                break
            text = spelled
        for pattern, replacement in _REPLACED:
            text = pattern.sub(replacement, text)
        text = _PERIOD.sub(_fraction, _BASE.sub(lambda m: f"_{{{_BASES[m[1]]}}}", text))
    text = _NAMED.sub(_command, _trimmed(text))
    return _without_braces(text[label.end() :] if (label := _LABEL.match(text)) else text)


def _fraction(period: re.Match[str]) -> str:
    """A decimal whose last digits repeat, as a fraction."""
    whole, fixed, repeated = period[1] or "0", period[2], period[3] or period[4]
    nines = (10 ** len(repeated) - 1) * 10 ** len(fixed)
    return rf"\frac{{{int(whole + fixed + repeated) - int(whole + fixed)}}}{{{nines}}}"


def _command(name: re.Match[str]) -> str:
    """The LaTeX of a function that is written without a backslash."""
    if name[4] or name[5]:
        return r"\pi " if name[4] else r"\infty "
    return rf"\sqrt{{{name[1] or name[2] or name[3]}}}"


def _money(text: str) -> str:
    """Removes the $ of LaTeX. An escaped $ is money, and so is a single one before a number."""
    if code := _CODE.match(text.replace("\\$", "$")):
        return _CURRENCY[code[1]] + text.replace("\\$", "$")[code.end() :]
    if "$" not in text:
        return text
    text = text.replace("\\$", DOLLAR)
    if text.count("$") % 2:
        text = re.sub(r"\$(?= ?[-+]?[\d.])|(?<=\d)\$(?!.)", DOLLAR, text, count=1)
    return text.replace("$", " ").strip()


def _without_braces(text: str) -> str:
    """Without braces around the whole text."""
    while text.startswith("{") and text.endswith("}") and not text.endswith("\\}") and enclosed(text):
        text = _trimmed(text[1:-1])
    return text


def _trimmed(text: str) -> str:
    return text.lstrip(_START).rstrip(_END)


def enclosed(text: str) -> bool:
    """Whether the bracket at the start is closed by the one at the end."""
    depths = [depth for _, depth in _depths(text)]
    return len(depths) > 1 and min(depths[:-1]) > 0 and depths[-1] == 0


_BRACKETS = re.compile(r"\\\\|\\[{}]|[()\[\]{}]")
_OPENING = {"(", "[", "{", "\\{"}


def _depths(text: str) -> list[tuple[int, int]]:
    """The place of every bracket, and how many are open after it."""
    depth, found = 0, []
    for bracket in _BRACKETS.finditer(text):
        if bracket[0] != "\\\\":
            depth += 1 if bracket[0] in _OPENING else -1
            found.append((bracket.start(), depth))
    return found


def top_level(text: str, separator: re.Pattern[str]) -> list[re.Match[str]]:
    """The matches of `separator` that are inside no bracket."""
    depths = _depths(text)
    found, open_now, k = [], 0, 0
    for match in separator.finditer(text):
        while k < len(depths) and depths[k][0] < match.start():
            open_now = depths[k][1]
            k += 1
        if open_now <= 0:
            found.append(match)
    return found
