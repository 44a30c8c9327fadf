"""Answers that are no mathematics: words, choices such as (C), times of day, and digits of a number in another base."""

import re

__all__ = ["is_words", "same_label", "same_words"]

_WORD = re.compile(r"(?<![\\a-zA-Z])(?:[a-zA-Z]{3,}|[Nn]o)(?![a-zA-Z])")
_BASED = re.compile(r"\(? ?([\dA-F]+) ?\)? ?_ ?\{? ?(\d{1,2}) ?\}?")
_TIME = re.compile(r"(?:at )?(\d{1,2})(?: ?: ?(\d\d))?(?: ?: ?(\d\d))? ?(?:([ap])\.? ?m\b\.?)?", re.IGNORECASE)
_CHOICE = re.compile(r"\(?([A-J])\)?")


def is_words(text: str) -> bool:
    """Whether this is a word or a choice such as (C), not mathematics."""
    return bool(re.fullmatch(r"\(?[A-Z]\)", text) or (re.fullmatch(r"[^\d\\=<>^+*/]+", text) and _WORD.search(text)))


def same_words(gold: str, given: str) -> bool:
    """Whether two texts have the same words; a choice may have its value after it: (C) 18."""

    def plain(text: str) -> str:
        return re.sub(r"[\s.,;:'\"()]+", " ", text).strip().casefold()

    if plain(gold) == plain(given):
        return True
    choice = re.fullmatch(r"\(?([A-Z])\)?", gold)
    return choice is not None and bool(re.match(rf"\(?{choice[1]}[).:](?:\s|$)|\({choice[1]}\)", given))


def same_label(gold: str, given: str) -> bool | None:
    """The verdict where the reference is a choice, a time of day or a number in another base; None of anything else."""
    if (choice := _CHOICE.fullmatch(gold)) and re.match(rf"\(?{choice[1]}[).:](?:\s|$)", given):
        return True
    hour, other = _time(gold), _time(given)
    if hour is not None and other is not None:
        return hour[:3] == other[:3] and (hour[3] == other[3] or "" in (hour[3], other[3]))
    if (a := _BASED.fullmatch(gold)) and (b := _BASED.fullmatch(given) or re.fullmatch(r"(\w+)", given)):
        return a[1] == b[1] and (b.lastindex == 1 or a[2] == b[2])
    if (b := _BASED.fullmatch(given)) and gold.isdigit():
        base = int(b[2])
        return 2 <= base <= 16 and all(int(digit, 16) < base for digit in b[1]) and int(b[1], base) == int(gold)
    return None


def _time(text: str) -> tuple[int, int, int, str] | None:
    """Hours, minutes, seconds and a or p of a time of day; None if the text is none."""
    found = _TIME.fullmatch(text)
    if found is None or not (found[2] or found[4]):
        return None
    return int(found[1]), int(found[2] or 0), int(found[3] or 0), (found[4] or "").lower()
