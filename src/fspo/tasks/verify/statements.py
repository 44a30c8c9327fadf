"""The one final answer that a text states as such, after its thinking.

Everything here takes time linear in the length of the text: markers are found from the end, a few at most, and only
a bounded part after each of them is read.
"""

import re
from dataclasses import dataclass

from fspo.tasks.verify.prose import (
    CLAUSE,
    MODES,
    TAIL,
    VALUE,
    Found,
    Mode,
    clause,
    denied,
    gives_up,
    last_result,
    phrase,
    read,
    withdrawn,
)
from fspo.tasks.verify.spelling import LONGEST

__all__ = ["MODES", "Mode", "Stated", "after_thinking", "boxes", "final_answer"]

MOST_BOXES = 16
LONGEST_ALONE = 120  # characters of a text that is nothing but an answer

_THINKING = (
    *((f"<{name}>", f"</{name}>") for name in ("think", "thinking", "thought", "reasoning", "Think", "THINK")),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("◁think▷", "◁/think▷"),
    ("[THINK]", "[/THINK]"),
)
_TAGS = ("answer", "ANSWER", "Answer", "final_answer")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s{0,8}(?:(\{)|(-?[\d.,]*\d))")
_JOINED = re.compile(
    r"(?:\s|[$,;&.]|\\[\])(\[,; ]|\\quad|\\text\{|\}|and|or|also|with|\\(?:text|mathrm|mbox)\{\s*(?:and|or)\s*\}"
    r"|\\?[a-zA-Z](?:_\{?\w\}?)?\s*=)*"
)
_SIGNED = re.compile(r"(?:=|\$|\\\[|\\\()\s*[-−]\s?$")
_CALCULATED = re.compile(
    r"\s?\\(?:sqrt|pi|times|cdot|frac)(?![a-zA-Z])|\^(?!\s?\{?\s?\\circ)|\s?[*/+]\s?\d|\s-\s?\d|!\s*[$\\]"
)
_PROSE = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}")


@dataclass(frozen=True)
class Stated:
    """A final answer: one text, or the contents of boxes that belong together, and all boxes of the text."""

    parts: tuple[str, ...]
    boxes: tuple[str, ...] = ()


def final_answer(text: str, mode: Mode = "boxed") -> Stated | None:
    """The final answer of a text, or None where it states none."""
    text = after_thinking(text)
    if not text.strip():
        return None
    every, unfinished = boxes(text)
    found = [_last_run(text, every), _tagged(text, mode), _hashed(text, mode), phrase(text, mode)]
    stated = [each for each in found if each is not None]
    stated = [each for each in stated if not any(start < each.start < end for start, end, _ in every)]  # words in a box
    best = max(stated, key=lambda each: (each.certain, each.start), default=None)
    if unfinished and (best is None or unfinished > best.start):
        return None  # the last statement was cut off
    if best is not None:
        if not best.parts or withdrawn(text[best.end : best.end + TAIL]):
            return None
        return Stated(best.parts, tuple(content for _, _, content in every))
    if "\\boxed" in text:
        return None  # what it boxes is no answer
    bare = _displayed(text) or _alone(text, mode) or (last_result(text) if mode == "any" else None)
    return None if bare is None else Stated((bare,))


def after_thinking(text: str) -> str:
    """The text after the last thinking; nothing where the thinking has not ended."""
    end = 0
    for _, closing in _THINKING:
        if (place := text.rfind(closing)) >= 0:
            end = max(end, place + len(closing))
    if any(text.find(opening, end) >= 0 for opening, _ in _THINKING):
        return ""
    return text[end:]


def boxes(text: str) -> tuple[list[tuple[int, int, str]], int]:
    """The last outermost \\boxed{...} as (start, end, content), and where an unfinished one after them begins, or 0.

    A box that the words before it deny, or that is a factor or a base of something larger, is none.
    """
    found: list[tuple[int, int, str]] = []
    unfinished, end = 0, len(text)
    for _ in range(MOST_BOXES):
        start = max(text.rfind(name, 0, end) for name in ("\\boxed", "\\fbox", "\\framebox"))
        if start < 0:
            break
        end = start
        opening = _BOX.match(text, start)
        if opening is None:
            continue
        close = opening.end() if opening[2] else _closing(text, opening.end())
        if close < 0:
            unfinished = unfinished or (0 if found else start + 1)
            continue
        while found and found[-1][0] < close:  # inside this one
            found.pop()
        before = text[max(0, start - 40) : start]
        content = (opening[2] or text[opening.end() : close - 1]).strip()
        if _SIGNED.search(before):
            content = f"-{content}" if re.fullmatch(r"[\d.,]+", content) else f"-({content})"
        if not denied(before) and not _CALCULATED.match(text, close):
            found.append((start, close, content))
    return found[::-1], unfinished


def _closing(text: str, start: int) -> int:
    """The end of the brace that was opened before `start`; -1 if it is not closed soon."""
    depth = 1
    for match in _BRACE.finditer(text, start, start + LONGEST):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.end()
    return -1


def _last_run(text: str, every: list[tuple[int, int, str]]) -> Found | None:
    """The last box, with those before it that only `and` or a comma separates from it."""
    if not every:
        return None
    run = [every[-1]]
    for before in reversed(every[:-1]):
        between = text[before[1] : run[0][0]]
        if len(between) > 60 or not _JOINED.fullmatch(between):
            break
        run.insert(0, before)
    return Found(run[-1][0], run[-1][1], tuple(dict.fromkeys(content for _, _, content in run)), certain=True)


def _tagged(text: str, mode: Mode) -> Found | None:
    """<answer>...</answer>; `any` takes one that is not closed, as a stop word leaves it."""
    closing = max(text.rfind(f"</{tag}>") for tag in _TAGS)
    opening, name = max((text.rfind(f"<{tag}>", 0, closing if closing >= 0 else None), tag) for tag in _TAGS)
    if opening < 0 or (closing < 0 and mode == "boxed"):
        return None
    content = text[opening + len(name) + 2 : closing if closing >= 0 else None].strip()
    end = closing + len(name) + 3 if closing >= 0 else len(text)
    return Found(opening, end, (content,) if content else (), certain=True) if len(content) <= LONGEST else None


def _hashed(text: str, mode: Mode) -> Found | None:
    """What stands after GSM8K's ####, to the end of its line."""
    start = text.rfind("####")
    if start < 0:
        return None
    content = text[start + 4 : start + 4 + CLAUSE].lstrip("# \t")
    if heading := re.match(r"[*_]*(?:the )?(?:final )?answer[*_]*(?: is)?[\s:*_]*", content, re.IGNORECASE):
        content = content[heading.end() :]
    value, question = clause(content)
    if not value:
        return None
    end = text.find(value, start) + len(value)
    return Found(start, end, (), certain=False) if question else read(value, start, end, mode)


def _displayed(text: str) -> str | None:
    """The displayed mathematics at the end of a text."""
    text = text.strip()
    for opening, closing in (("\\[", "\\]"), ("$$", "$$")):
        if text.endswith(closing):
            start = text.rfind(opening, 0, len(text) - 2)
            before = text[max(0, start - TAIL) : max(0, start)]
            if start >= 0 and len(text) - start <= LONGEST and not gives_up(before):
                return text[start + 2 : -2].strip()
    return None


def _alone(text: str, mode: Mode) -> str | None:
    """A text that is nothing but an answer: a value with its unit, or words without any number."""
    text = text.strip()
    if len(text) > LONGEST_ALONE or "\n" in text:
        return None
    if VALUE.match(text.lstrip("*_`=:≈ \u200b\ufeff")):
        return None if mode == "any" and len(_PROSE.findall(text)) > 2 else text
    return None if re.search(r"[\d\\]", text) else text
