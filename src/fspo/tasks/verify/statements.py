"""The one final answer that a text states as such, after its thinking.

Everything here takes time linear in the length of the text: markers are found from the end, a few at most, and only
a bounded part after each of them is read.
"""

import re
from dataclasses import dataclass
from typing import Literal, get_args

from fspo.tasks.verify.spelling import LONGEST

__all__ = ["MODES", "Mode", "Stated", "after_thinking", "boxes", "final_answer"]

Mode = Literal["boxed", "any"]
MODES: tuple[str, ...] = get_args(Mode)

MOST_BOXES = 16
MOST_PHRASES = 4
CLAUSE = 300  # characters read after a phrase
TAIL = 600  # characters at the end of a text in which `any` looks for a result

_THINKING = (
    *((f"<{name}>", f"</{name}>") for name in ("think", "thinking", "thought", "reasoning", "Think", "THINK")),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("◁think▷", "◁/think▷"),
    ("[THINK]", "[/THINK]"),
)
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s{0,8}(?:(\{)|(-?[\d.,]*\d))")
_JOINED = re.compile(
    r"(?:\s|[$,;&.]|\\[\])(\[,; ]|\\quad|\\text\{|\}|and|or|also|with|\\(?:text|mathrm|mbox)\{\s*(?:and|or)\s*\}"
    r"|\\?[a-zA-Z](?:_\{?\w\}?)?\s*=)*"
)
_PHRASE = re.compile(
    r"(?:[Aa]nswers?|ANSWERS?)[*_]{0,3}(?:\s+(?:to|of|for)\s[^.\n:=]{1,80}?)?\s{0,4}"
    r"(?:is|are|was|be|equals?|=|:|becomes)(?![a-zA-Z])[\s:*_]{0,8}"
)
_FILLER = re.compile(
    r"(?:(?:equal to|exactly|approximately|about|roughly|around|simply|just|therefore|thus|indeed|given by|still|now"
    r"|the|a total of|an?|clearly|then|also|both|number|value|option|choice|letter)(?![a-zA-Z])|[\s:=*_])+",
    re.IGNORECASE,
)
_VALUE = re.compile(r"[-+−–]?\s?(?:[\d$£€\\(\[{√∛½¼¾⅓⅔π.∞]|[a-zA-Z](?:$|\s{0,2}[=^+\-*/(<>≤≥_≠\\]|[.,]?$))")
_SENTENCE = re.compile(r"[.?](?=\s|$|\*)|\n|<[|/a-z]|```")
_CONTINUED = re.compile(
    r",? (?:because|since|which|as|therefore|after|where|when|given|making|meaning|assuming)(?![a-zA-Z])"
    r"|, (?=[a-z]{2,}\b(?<!and)(?<!or))|\s\((?=[^()\\]*[a-z]{3})|\s[-–—]\s(?=[a-zA-Z]{2})|;\s"
)
_NUMBER = re.compile(r"[-+−–]?\s?[$£€]?\s?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")
_OPEN = re.compile(
    r"\b(?:not|or|either|neither|nor|between|maybe|perhaps|possibly|might|could|may|cannot|unknown|unclear|unsure"
    r"|at least|at most|more than|less than|greater|fewer|guess|uncertain|undetermined|impossible|never|if"
    r"|minus|plus|times|divided|negative)\b"
    r"|n['’]t\b",
    re.IGNORECASE,
)
_GIVEN_UP = re.compile(
    r"\b(?:can(?:not|['’]t| not)|could(?:n['’]t| not)|unable|(?:do|does|did)(?:n['’]t| not) know|not (?:sure|certain"
    r"|know|enough|able|possible|clear)|no idea|giv(?:e|ing) up|maybe|perhaps|possibly|guess|unclear|unsure|uncertain"
    r"|impossible|insufficient|undetermined|(?:might|could|may) be)\b",
    re.IGNORECASE,
)
_RETRACTED = re.compile(r"\b(?:wait|wrong|incorrect|mistake|actually|hmm|scratch that|correction)\b", re.IGNORECASE)
_ANNOTATION = re.compile(r"<<[^<>\n]{0,100}>>")  # of GSM8K's calculator
_HEDGED = re.compile(
    r"\b(?:maybe|perhaps|possibly|guess|either|neither|nor|(?:might|could|may) be)\b"
    r"|\b(?:not|n['’]t|never|at least|at most|(?:more|less|greater|fewer) than|between)"
    r"(?: be| equal| equal to)?\W{0,4}\d"
    r"|\d\s?(?:[a-z]{1,12}\s)?or\s\W?\d",
    re.IGNORECASE,
)
_WORDS = re.compile(r"[a-zA-Z\s,:;'’\"*_$-]*")
_PROSE = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}")
_TERM = re.compile(r"(?<![\w.])[\d(][-−–\d\s*/().,×·÷+x]*$")
_SCALE = re.compile(r"\s?(?:\\?%|percent|per cent|hundred|thousand|million|billion)(?![a-zA-Z])")


@dataclass(frozen=True)
class Stated:
    """A final answer: one text, or the contents of boxes that belong together, and all boxes of the text."""

    parts: tuple[str, ...]
    boxes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Found:
    start: int
    parts: tuple[str, ...]
    certain: bool  # it is a value; other words count only where nothing else is stated


def final_answer(text: str, mode: Mode = "boxed") -> Stated | None:
    """The final answer of a text, or None where it states none."""
    text = after_thinking(text)
    if not text.strip():
        return None
    every, unfinished = boxes(text)
    found = [_last_run(text, every), _tagged(text, mode), _hashed(text), _phrase(text, mode)]
    stated = [each for each in found if each is not None]
    best = max(stated, key=lambda each: (each.certain, each.start), default=None)
    if unfinished and (best is None or unfinished > best.start):
        return None  # the last statement was cut off
    if best is not None:
        return Stated(best.parts, tuple(content for _, _, content in every))
    bare = _displayed(text) or _alone(text, mode) or (_last_result(text) if mode == "any" else None)
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
    """The last outermost \\boxed{...} as (start, end, content), and where an unfinished one after them begins, or 0."""
    found: list[tuple[int, int, str]] = []
    unfinished, end = 0, len(text)
    for _ in range(MOST_BOXES):
        start = max(text.rfind("\\boxed", 0, end), text.rfind("\\fbox", 0, end))
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
        content = opening[2] or text[opening.end() : close - 1]
        found.append((start, close, content.strip()))
    return found[::-1], unfinished


def _closing(text: str, start: int) -> int:
    """The end of the brace that was opened before `start`; -1 if it is not closed soon."""
    depth = 1
    for match in _BRACE.finditer(text, start, start + LONGEST):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.end()
    return -1


def _last_run(text: str, every: list[tuple[int, int, str]]) -> _Found | None:
    """The last box, with those before it that only `and` or a comma separates from it."""
    if not every:
        return None
    run = [every[-1]]
    for before in reversed(every[:-1]):
        between = text[before[1] : run[0][0]]
        if len(between) > 60 or not _JOINED.fullmatch(between):
            break
        run.insert(0, before)
    return _Found(run[-1][0], tuple(dict.fromkeys(content for _, _, content in run)), certain=True)


def _tagged(text: str, mode: Mode) -> _Found | None:
    """<answer>...</answer>; `any` takes one that is not closed, as a stop word leaves it."""
    closing = max(text.rfind("</answer>"), text.rfind("</ANSWER>"), text.rfind("</Answer>"))
    opening = max(text.rfind(tag, 0, closing if closing >= 0 else None) for tag in ("<answer>", "<ANSWER>", "<Answer>"))
    if opening < 0 or (closing < 0 and mode == "boxed"):
        return None
    content = text[opening + 8 : closing if closing >= 0 else None].strip()
    return _Found(opening, (content,), certain=True) if 0 < len(content) <= LONGEST else None


def _hashed(text: str) -> _Found | None:
    """What stands after GSM8K's ####, to the end of its line."""
    start = text.rfind("####")
    if start < 0:
        return None
    content = text[start + 4 : start + 4 + CLAUSE].lstrip("# \t")
    if heading := re.match(r"[*_]*(?:the )?(?:final )?answer[*_]*(?: is)?[\s:*_]*", content, re.IGNORECASE):
        content = content[heading.end() :]
    value = _clause(content)
    return _read(value, start) if value else None


def _read(value: str, start: int) -> _Found | None:
    """What a clause says is the answer: a value, the one number in it, or else its words; None if it leaves it open."""
    value = value[filler.end() :] if (filler := _FILLER.match(value)) else value
    if _VALUE.match(value):
        return _Found(start, (value,), certain=True)
    numbers = list(_NUMBER.finditer(value))
    if numbers and (_OPEN.search(value) or not _WORDS.fullmatch(value[: numbers[0].start()])):
        return None
    if len(numbers) == 1:
        return _Found(start, (value[numbers[0].start() :].strip(),), certain=True)
    return _Found(start, (value,), certain=False) if value else None


def _phrase(text: str, mode: Mode) -> _Found | None:
    """`The answer is ...`: the last one, and in a strict text nothing that may be another answer after it."""
    end = len(text)
    for _ in range(MOST_PHRASES):
        start = max(text.rfind(word, 0, end) for word in ("nswer", "NSWER"))
        if start < 1:
            return None
        end = start
        found = _PHRASE.match(text, start - 1, start + 120)
        if found is None:
            continue
        content = text[found.end() : found.end() + CLAUSE]
        if display := re.match(r"(?:\\\[|\$\$)(.+?)(?:\\\]|\$\$)", content, re.DOTALL):
            return _Found(start, (display[1].strip(),), certain=True)
        value = _clause(content)
        rest = text[found.end() : found.end() + TAIL].partition(value)[2] if value else ""
        if mode == "boxed" and (re.search(r"\d", rest) or _RETRACTED.search(rest)):
            return None
        if not value:
            return None
        return _read(value, start)
    return None


def _clause(content: str) -> str:
    """The first sentence of a text, without what a subordinate clause adds to it."""
    content = content.lstrip(" \t\n*_:")
    if end := _SENTENCE.search(content):
        content = content[: end.start()]
    if end := _CONTINUED.search(content):
        content = content[: end.start()]
    return content.strip()


def _displayed(text: str) -> str | None:
    """The displayed mathematics at the end of a text."""
    text = text.strip()
    for opening, closing in (("\\[", "\\]"), ("$$", "$$")):
        if text.endswith(closing):
            start = text.rfind(opening, 0, len(text) - 2)
            before = text[max(0, start - TAIL) : max(0, start)]
            if start >= 0 and len(text) - start <= LONGEST and not _GIVEN_UP.search(before):
                return text[start + 2 : -2].strip()
    return None


def _alone(text: str, mode: Mode) -> str | None:
    """A text that is nothing but an answer; in `any` one with several words is prose."""
    text = text.strip()
    if len(text) > 120 or "\n" in text:
        return None
    prose = mode == "any" and (len(_PROSE.findall(text)) > 2 or not _VALUE.match(text))
    return None if prose else text


def _last_result(text: str) -> str | None:
    """For `any`: the result in the last sentence that has one, if the text does not give up or leave it open."""
    tail = _ANNOTATION.sub("", text[-TAIL:]).rstrip()
    if _GIVEN_UP.search(tail[-TAIL // 2 :]):
        return None
    sentences = [part for part in re.split(r"(?<=[.?!])\s|\n", tail) if re.search(r"[\d\\]", part)]
    last = sentences[-1].strip(" .*_") if sentences else ""
    if not last or _HEDGED.search(last):
        return None
    last = re.sub(r"\$(?=\s?[\d.])(?![^$]*[\\^_=][^$]*\$)", "", last)  # money, not mathematics
    if spans := re.findall(r"\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", last):
        return str(max(spans[-1], key=len))
    last = last.replace("$", "")
    results = list(_NUMBER.finditer(last))
    if not results:
        return None
    if (equals := last.rfind("=")) >= 0:
        results = [match for match in results if match.start() > equals][:1] or results
    result = results[-1]
    unit = _SCALE.match(last, result.end())
    term = _TERM.search(last[:equals]) if 0 <= equals < result.start() else None
    # The sum before it is checked too, unless words are part of it: 14 hours * 10 = 140.
    whole = term is not None and not re.search(r"[-*/+×÷−–x(]\s*$", last[: term.start()])
    chain = f"{term[0]} = " if term is not None and whole else ""
    return chain + result[0].strip() + (unit[0] if unit else "")
