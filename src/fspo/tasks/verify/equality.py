"""Whether two answers are equal: relations and lists are taken apart, and their parts compared one by one."""

import re
from dataclasses import dataclass
from functools import lru_cache

from fspo.tasks.verify.labels import is_words, same_label, same_words
from fspo.tasks.verify.quantity import Quantity, quantity
from fspo.tasks.verify.spelling import LONGEST, enclosed, tidy, top_level
from fspo.tasks.verify.statements import Mode, final_answer
from fspo.tasks.verify.symbolic import equivalent, near, readable

__all__ = ["equal", "reference", "same"]

MOST_PARTS = 20
MOST_RELATIONS = 8
MOST_DIGITS = 40  # of a number that is compared with an expression

_RELATION = re.compile(r"\\(?:neq|le|ge|approx|equiv|in|Rightarrow)(?![a-zA-Z])|[<>]|(?<![<>!:])=")
_SEPARATOR = re.compile(r",|;|(?<![a-zA-Z])(?:and|or)(?![a-zA-Z])|\\(?:lor|vee)(?![a-zA-Z])")
_SIGNS = re.compile(r"\\(?:pm|mp)(?![a-zA-Z])|\+/-|\+-")
_SPACED = re.compile(r"(?<=[\d})]) (?=[a-zA-Z](?![a-zA-Z]))")
_NEGATED = re.compile(
    r"\b(?:not|no|never|isn't|neither|nor|cannot|suppose|assume|assuming|if|try|maybe|perhaps|guess|unless|wrong|false"
    r"|incorrect)\b|\\(?:not|notin|neg|lnot)(?![a-zA-Z])",
    re.IGNORECASE,
)
_LETTER = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z](?![a-zA-Z])")
_ASSIGNED = re.compile(r"([a-zA-Z]) ?=(?!=)")
_INDEX = re.compile(r"[_^] ?(?:\{[^{}]*\}|\w)|(?<=[a-zA-Z}])\([^()]*\)|\\[a-zA-Z]+")
_TIMES = re.compile(r"(?<=[\d)]) ?x ?(?=[\d(.])")
_GROUPS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


@dataclass(frozen=True)
class _Answer:
    """A tidy text, and the number it is, if it is one."""

    text: str
    number: Quantity | None
    words: bool


@dataclass(frozen=True)
class _List:
    """Several parts, and the brackets around them, if there are any."""

    opening: str
    parts: tuple[str, ...]
    closing: str


def equal(gold: str, completion: str, mode: Mode = "boxed") -> bool:
    """Whether the final answer that the completion states equals the reference."""
    stated = final_answer(completion, mode)
    if stated is None:
        return False
    if same(gold, ", ".join(stated.parts)):
        return True
    if len(stated.boxes) > len(stated.parts):  # boxes all over the text may together be the answer, never a part of it
        wanted = _parts(_expanded(_read(gold).text))
        if len(stated.parts) == 1 and len(wanted.parts) == len(stated.boxes) > 1:
            return same(gold, ", ".join(stated.boxes))
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


def same(gold: str, given: str) -> bool:
    """Whether two answers, each written alone, have the same value."""
    if not given or len(given) > LONGEST:
        return False
    if gold == given:
        return True
    wanted, answer = _read(gold), _read_given(given)
    if wanted.number is not None and answer.number is not None:
        return wanted.number.equals(answer.number)
    if not answer.text:
        return False
    if wanted.words or wanted.text == answer.text:
        return same_words(wanted.text, answer.text)
    if (verdict := same_label(wanted.text, answer.text)) is not None:
        return verdict
    return _same_relation(wanted.text, answer.text)


@lru_cache(maxsize=4096)
def _read(text: str) -> _Answer:
    return _read_given(text)


def _read_given(text: str) -> _Answer:
    spelled = tidy(text)
    number = quantity(spelled)
    words = number is None and is_words(spelled)
    return _Answer(spelled if words else _SPACED.sub("", spelled), number, words)


# --- relations ---


def _same_relation(gold: str, given: str) -> bool:
    """Compares equations by their value (x = 5 is 5), and leaves inequalities to math-verify."""
    wanted, found = top_level(gold, _RELATION), top_level(given, _RELATION)
    if _NEGATED.search(given) or len(found) > MOST_RELATIONS or len(_SIGNS.findall(given)) > MOST_RELATIONS:
        return False
    if any(match[0] not in ("=", "\\in") for match in wanted):
        listed = _parts(given)
        interval = "\\cup" in given or (len(listed.parts) == 2 and listed.opening in ("(", "["))
        return bool(found or interval) and equivalent(gold, given)
    if wanted and len(_split(gold)) > 1:  # x = 1, y = 2
        return _same_list(gold, given)
    name, value = _named(gold, wanted)
    if wanted and value is None:  # an equation that does not give the value of a name
        return any(match[0] == "=" for match in found) and equivalent(gold, given)
    value = gold if value is None else value
    kinds = {match[0] for match in found}
    if kinds & {"\\neq", "<", ">", "\\le", "\\ge", "\\equiv"}:
        if "\\cup" in value and len(rays := _split(given)) > 1:  # x < 1 or x > 2
            unions = tuple(part.strip() for part in value.split("\\cup"))
            return len(unions) == len(rays) and _same_in_any_order(unions, rays)
        interval = len(_parts(value).parts) == 2 or "\\cup" in value or "\\infty" in value
        return interval and kinds <= {"<", ">", "\\le", "\\ge"} and equivalent(value, given)
    if not found:
        return _same_list(value, given)
    if len(_split(_GROUPS.sub("", given))) > 1:  # x = 2, x = 3
        return len(_parts(_expanded(value)).parts) > 1 and _same_list(value, given)
    curve = name is not None and len(name) == 1 and [match[0] for match in found] == ["="] and _LETTER.search(value)
    return _same_chain(name, value, given, found) or bool(curve and equivalent(gold, given))


def _named(text: str, relations: list[re.Match[str]]) -> tuple[str | None, str | None]:
    """The name and the value of `x = 5` or `x \\in [2, 3]`."""
    if len(relations) != 1:
        return None, None
    left, right = text[: relations[0].start()].strip(), text[relations[0].end() :].strip()
    equation = re.search(r"(?<![\\a-zA-Z])[a-zA-Z] ?\^ ?(?!\{? ?-)|\d", left) and not re.match(r"\w+ ?\(", left)
    return (left, right) if _is_name(left) and not equation else (None, None)


def _is_name(text: str) -> bool:
    """Whether this names something (x, f(2), a + b, \\angle ABC) and has no value of its own as 2 + 2 has."""
    if re.search(r"[.!?;]\s", text) or len(text.split()) > 8 or text == "\\pi":
        return False
    bare = _INDEX.sub("", text)
    return not any(c.isdigit() for c in bare) and bool(re.search(r"[a-zA-Z]", text)) and "\\sqrt" not in text


def _same_chain(name: str | None, value: str, given: str, relations: list[re.Match[str]]) -> bool:
    """A chain `x = 2 + 3 = 5` is 5 if all its terms are: 2 + 2 = 42 is not 42."""
    if any(match[0] == "\\Rightarrow" for match in relations):
        last = [match for match in relations if match[0] == "\\Rightarrow"][-1]
        if quantity(given[: relations[0].start()].strip()) is not None:  # 18 -> 19 states no value
            return False
        return same(value if name is None else f"{name} = {value}", given[last.end() :])
    edges = [0, *(edge for match in relations for edge in match.span()), len(given)]
    terms = [given[a:b].strip() for a, b in zip(edges[::2], edges[1::2], strict=True)]
    kinds = [match[0] for match in relations]
    if not terms[0]:  # as in "= 5"
        terms, kinds = terms[1:], kinds[1:]
    named = len(terms) > 1 and _is_name(terms[0])
    if named:
        single = name is not None and len(name) == len(terms[0]) == 1
        if single and name != terms[0]:
            return False
        terms, kinds = terms[1:], kinds[1:]
    elif len(terms) == 2 and re.fullmatch(r"[a-zA-Z]", terms[1]) and name in (None, terms[1]):  # 5 = x
        terms, kinds = terms[:1], []
    if not all(terms) or not _same_list(value, terms[-1]):
        return False
    for term, kind in zip(terms[:-1], kinds, strict=False):
        letters = re.search(r"[a-zA-Z]", re.sub(r"\\[a-zA-Z]+|degrees", "", term))
        if (letters and named) or (kind == "\\approx" and near(term, terms[-1])):
            continue
        if not same(value, _TIMES.sub("*", term)):
            return False
    return True


# --- lists, sets, pairs and intervals ---


def _same_list(gold: str, given: str) -> bool:
    wanted, found = _parts(_expanded(gold)), _parts(_expanded(given))
    n = len(wanted.parts)
    if n == 1 and len(found.parts) > 1 and _GROUPS.search(given):
        found = _parts(_GROUPS.sub("", given))
    if n > 1 and len(found.parts) == 1 and re.match(r"[A-Z] ?\(", given):  # the point P(3, 4)
        found = _parts(given[1:].strip())
    if n == 1 and len(found.parts) == 1:
        return _same_value(wanted.parts[0], found.parts[0])
    if n == 1 or len(found.parts) != n or n > MOST_PARTS:
        grouped = n > 1 and len(found.parts) == 1
        return grouped and ("\\cup" in given or "matrix" in given) and equivalent(gold, given)
    kinds = (wanted.opening, found.opening)
    named, ordered = _by_name(wanted.parts), _by_name(found.parts)
    if (named is None) != (ordered is None) and "\\{" not in kinds:  # x = 1, y = 2 for (1, 2), in alphabetical order
        if named is None and kinds[0] == "":
            return _same_in_any_order(wanted.parts, found.parts)
        return all(same(a, b) for a, b in zip(named or wanted.parts, ordered or found.parts, strict=True))
    if kinds in {("", ""), ("\\{", "\\{"), ("", "\\{"), ("\\{", "")}:
        return _same_in_any_order(wanted.parts, found.parts)
    bare = "" in kinds and "\\{" not in kinds
    if not bare and (kinds[0] != kinds[1] or wanted.closing != found.closing):
        return False
    return all(same(a, b) for a, b in zip(wanted.parts, found.parts, strict=True))


def _by_name(parts: tuple[str, ...]) -> tuple[str, ...] | None:
    """Parts that each give the value of another letter, in the order of the letters; None of other parts."""
    names = [found[1] if (found := _ASSIGNED.match(part)) else "" for part in parts]
    if "" in names or len(set(names)) < len(names):
        return None
    return tuple(part for _, part in sorted(zip(names, parts, strict=True)))


def _same_in_any_order(gold: tuple[str, ...], given: tuple[str, ...]) -> bool:
    left = list(given)
    for part in gold:
        match = next((other for other in left if same(part, other)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def _same_value(gold: str, given: str) -> bool:
    wanted, answer = quantity(gold), quantity(given)
    if wanted is not None and answer is not None:
        return wanted.equals(answer)
    if answer is not None and len(given) > MOST_DIGITS:
        return False
    gold, given = _without_unit(gold), _without_unit(given)
    if gold == given:
        return True
    if answer is not None and not readable(given):  # a number with the unit in words
        given = f"{answer.value}"
    if wanted is not None and (wanted.unit or not readable(gold)):
        gold = f"{wanted.value}"
    return equivalent(gold, given)


def _without_unit(text: str) -> str:
    """An expression without the words after it: 3 sqrt(2) cm."""
    found = re.search(r"(?<=[\d})a-z]) ((?:[a-zA-Z]{2,}[ /])*[a-zA-Z]{2,}(?:\^ ?\{?[23]\}?)?)$", text)
    if found is None or quantity("1 " + found[1]) is None or quantity(text) is not None:
        return text
    return text[: found.start()].strip()


def _expanded(text: str) -> str:
    """`1 \\pm 2` as the list of its two values."""
    if not _SIGNS.search(text):
        return text
    listed = _parts(text)
    parts = []
    for part in listed.parts:
        if _SIGNS.search(part):
            lower = part.replace("\\mp", "+")
            parts += [_SIGNS.sub("+", part.replace("\\mp", "-")), _SIGNS.sub("-", lower)]
        else:
            parts.append(part)
    return f"{listed.opening}{', '.join(p.strip().removeprefix('+') for p in parts)}{listed.closing}"


def _parts(text: str) -> _List:
    """The parts of a list, with its brackets; one part if it is none."""
    for opening, closing in (("(", ")]"), ("[", ")]"), ("\\{", "}")):
        if text.startswith(opening) and text[-1] in closing and enclosed(text):
            closed = "\\}" if closing == "}" else text[-1]
            inner = text[len(opening) : -len(closed)].strip()
            parts = _split(inner)
            if len(parts) > 1 or (opening == "\\{" and parts != ("\\emptyset",)):
                return _List(opening, parts, closed)
            if opening == "(" and closed == ")":
                return _parts(inner) if inner else _List("", (text,), "")
    return _List("", _split(text), "")


def _split(text: str) -> tuple[str, ...]:
    if quantity(text) is not None:  # a comma may be part of the number
        return (text,)
    cuts = top_level(text, _SEPARATOR)
    edges = [0, *(edge for match in cuts for edge in match.span()), len(text)]
    parts = (text[a:b].strip() for a, b in zip(edges[::2], edges[1::2], strict=True))
    return tuple(part for part in parts if part) or (text,)
