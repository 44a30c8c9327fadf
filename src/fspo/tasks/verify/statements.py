"""The one final answer that a text states as such, after its thinking and unless it is taken back.

Everything here takes time linear in the length of the text: markers are searched from the end, a few at most, and only
a bounded part after each of them is read.
"""

import re
from dataclasses import dataclass, replace
from typing import Literal, get_args

__all__ = ["LONGEST", "MODES", "Mode", "Statement", "final_answer"]

Mode = Literal["boxed", "any"]
MODES: tuple[str, ...] = get_args(Mode)

LONGEST = 1000  # characters of a final answer; a longer one is not an answer
LONGEST_ALONE = 120  # characters of a text that is nothing but an answer
MOST_BOXES = 16
MOST_PHRASES = 4
CLAUSE = 300  # characters read after a phrase
TAIL = 600  # characters read after a statement, and at the end of a text in which `any` looks for a result


def _words(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


_THINKING = re.compile(
    r"(?P<closed></(?:think|thinking|thought|reasoning|Think|THINK)>|<\|end_of_thought\|>|◁/think▷|\[/THINK\])"
    r"|<(?:think|thinking|thought|reasoning|Think|THINK)>|<\|begin_of_thought\|>|◁think▷|\[THINK\]"
)
_TAG = re.compile(r"<(/?)(?:answer|ANSWER|Answer|final_answer)>")
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s{0,8}(?:(\{)|(-?[\d.,]*\d))")
_JOINED = re.compile(
    r"(?:\s|[$,;&.]|\\[\])(\[,; ]|\\quad|\\text\{|\}|and|or|also|with|\\(?:text|mathrm|mbox)\{\s*(?:and|or)\s*\}"
    r"|\\?[a-zA-Z](?:_\{?\w\}?)?\s*=)*"
)
_CALCULATED = re.compile(
    r"\s?\\(?:sqrt|pi|times|cdot|frac)(?![a-zA-Z])|\^(?!\s?\{?\s?\\circ)|\s?[*/+]\s?\d|\s-\s?\d|!\s*[$\\]"
)
_ANSWER = r"(?:[Aa]nswers?|ANSWERS?)[*_]{0,3}"
_PHRASE = re.compile(
    rf"{_ANSWER}(?:(?:\s+(?:to|of|for)\s[^.\n:=]{{1,80}}?)?(?:,? (?:then|therefore|thus|hence|indeed),?)?\s{{0,4}}"
    r"(?:(?:must|should|will|would|has to|turns out to|works out to)\s+be|comes (?:out )?to"
    r"|is|are|was|be|equals?|:|becomes)|\s{0,4}=)(?![a-zA-Z])[\s:*_]{0,8}"
)
_HEADING = re.compile(rf"{_ANSWER}:?[*_]{{0,3}}[ \t]*\n")
_SUPPOSED = _words(  # before a phrase
    r"\b(?:suppos\w+|assum\w+|pretend|imagine|if|unless|whether|when)\s+(?:that\s+)?(?:\w+\s+){0,3}$"
    r"|\b(?:doubt(?:s|ful)?|unlikely|false|untrue|incorrect|wrong|nobody|no one|wonder|disagree)\b[^,]*$"
    r"|(?:n['’]t|\b(?:not|cannot|never))\s+(?:\w+\s+){0,2}(?:true|likely|sure|certain|say|think|believe|know|mean"
    r"|conclude|claim|case|find)\b[^,]*$|\b(?:reference|expected|textbook|ground[- ]truth)\s+$"
)
_FILLER = _words(
    r"(?:(?:equal to|exactly|approximately|about|roughly|around|simply|just|therefore|thus|given by|still|now|the"
    r"|a total of|an?|then|also|both|number|value|option|choice)(?![a-zA-Z])|[\s:=*_≈])+"
)
_VALUE = re.compile(
    r"[-+−–]?\s?(?:[\d$£€¥₹\\(\[{√∛½¼¾⅓⅔π.∞]|[a-zA-Z](?:$|\s{0,2}[=^+\-*/(<>≤≥_≠\\]|[.,]?$)|[A-J][).]\s"
    r"|(?:USD|EUR|GBP|INR|Rs\.?|US\$)\s?[\d$\\])"
)
_SENTENCE = re.compile(r"(?<!^[A-J])[.?](?=\s|$|\*)|!(?=\s*$|\s+[A-Z]|\*)|\n|<[|/a-z]|```")
_CONTINUED = re.compile(
    r",? (?:because|since|which|as|therefore|after|where|when|given|making|meaning|assuming)(?![a-zA-Z])"
    r"|, (?=[a-z]{2,}\b(?<!and)(?<!or))|\s\((?=[^()\\]*[a-z]{3}|[\d\s.]+[-+*/×=])|\s[-–—]\s(?=[a-zA-Z]{2})|;\s"
)
_NUMBER = re.compile(r"[-+−–]?\s?[$£€]?\s?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")
_OPEN = _words(  # beside a number: it is not the answer, or only part of it
    r"\b(?:not|no|or|either|neither|nor|between|maybe|perhaps|possibly|might|could|may|cannot|unknown|unclear|unsure"
    r"|at least|at most|than|greater|fewer|guess|uncertain|undetermined|impossible|never|if|unless|except|but"
    r"|minus|plus|times|divided|multiplied|negative|half|third|quarter|twice|double|triple|thrice|root|squared?|cubed?"
    r"|log|power|reciprocal|inverse|opposite|factorial|near|nearly|almost|close|up to|under|over|above|below|beyond"
    r"|before|after|next|previous|within|without|any|anything|something|candidates?|among|one of|outside|inside)\b"
    r"|n['’]t\b"
)
_GIVES_UP = _words(
    r"\b(?:can(?:not|['’]t| not)|could(?:n['’]t| not)|unable to|(?:do|does|did)(?:n['’]t| not) know|not (?:sure|certain"
    r"|enough)|no idea|giv(?:e|ing) up|maybe|perhaps|guess|uncertain|unsure|unclear|impossible to|insufficient"
    r"|undetermined|more information|(?:might|could|may) be)\b"
)
_WITHDRAWN = _words(  # after a statement
    r"\bwait[,.!…:]|\b(?:no,? wait|scratch that|on second thought|i (?:made|have made) an? (?:mistake|error)"
    r"|i (?:was wrong|do not know|don['’]t know|have no idea|give up)"
    r"|(?:that|this|it|which)(?:(?:['’]s| is| was) (?:wrong|incorrect|false|not (?:right|correct))"
    r"|(?: is| was)n['’]t (?:right|correct)| can(?:not|['’]t) be (?:right|correct)))\b"
    r"|^[\s$*.)\]\\}]*(?:is|was)(?:n['’]t| not| wrong| incorrect| false)\b"
)
_DENIED = _words(  # before a box
    r"(?:\b(?:not|never|neither|nor|cannot)|n['’]t)(?:\s+(?:be|equal|simply|just|actually|to|the|answer)){0,3}[\s$*:\\(\[{]*$"
    r"|(?:\\neq?|≠|!=|\\not\s?=)[\s{]*$"
)
_HEDGED = _words(  # in the last sentence
    rf"{_GIVES_UP.pattern}|\b(?:possibly|either|neither|nor|suppose|assume|doubt|whether)\b"
    r"|^(?:let|try|testing|consider)\b|\b(?:not|n['’]t|never|negative|minus|at least|at most|(?:more|less|greater"
    r"|fewer) than|between|up to|half of|twice|question is about)(?: be| equal| equal to)?\W{0,4}\d"
    r"|\d\s?(?:[a-z]{1,12}\s)?or\s\W?\d|\bnot (?:true|the case|an?\s|the\s)|\bwould\b.*\bif\b|\?$"
    r"|\b(?:need|want|try|trying|let['’]?s?|us|me) (?:to )?(?:find|check|compute|determine|solve|try|verify|see|test)\b"
    r"|\b(?:is|are|was)(?: not|n['’]t)\b[^,]*$"
)
_RESULT = re.compile(rf"[-+−–]?\s?[$£€]?\s?(?:\d+ )?\d+\s?/\s?\d+|{_NUMBER.pattern}")
_TERM = re.compile(r"(?<![\w.])[\d(][-−–\d\s*/().,×·÷+x]*$")
_SCALE = re.compile(r"\s?(?:\\?%|percent|per cent|hundred|thousand|million|billion)(?![a-zA-Z])")


@dataclass(frozen=True)
class Statement:
    """Where a text states an answer: one text, or the contents of boxes that belong together.

    Without parts the statement leaves the answer open.
    """

    start: int
    end: int
    parts: tuple[str, ...] = ()
    certain: bool = False  # it is a value; other words count only where nothing else is stated
    boxes: tuple[str, ...] = ()  # all boxes of the text


_Box = tuple[int, int, str]  # start, end, content


def final_answer(text: str, mode: Mode = "boxed") -> Statement | None:
    """The final answer of a text, or None where it states none."""
    thinking = list(_THINKING.finditer(text))
    if thinking and not thinking[-1]["closed"]:
        return None
    text = text[thinking[-1].end() if thinking else 0 :]
    boxes, unfinished = _boxes(text)
    statements = [_last_boxes(text, boxes), _tagged(text, mode), _hashed(text), _phrase(text, mode)]
    stated = [
        each for each in statements if each is not None and not any(start < each.start < end for start, end, _ in boxes)
    ]
    last = max(stated, key=lambda each: (each.certain, each.start), default=None)
    if unfinished and (last is None or unfinished > last.start):
        return None  # the last statement was cut off
    if last is not None:
        if not last.parts or _WITHDRAWN.search(text[last.end : last.end + TAIL]):
            return None
        return replace(last, boxes=tuple(content for _, _, content in boxes))
    if "\\boxed" in text:
        return None  # what it boxes is no answer
    bare = _displayed(text) or _alone(text) or (_last_result(text) if mode == "any" else None)
    return None if bare is None else Statement(0, len(text), (bare,))


def _boxes(text: str) -> tuple[list[_Box], int]:
    """The last outermost \\boxed{...}, and where an unfinished one after them begins, or 0.

    A box that the words before it deny, or that is a factor or a base of something larger, is none.
    """
    boxes: list[_Box] = []
    unfinished, end = 0, len(text)
    for _ in range(MOST_BOXES):
        start = end = max(text.rfind(name, 0, end) for name in ("\\boxed", "\\fbox", "\\framebox"))
        if start < 0:
            break
        opening = _BOX.match(text, start)
        if opening is None:
            continue
        close = opening.end() if opening[2] else _closing(text, opening.end())
        if close < 0:
            unfinished = unfinished or (0 if boxes else start + 1)
            continue
        while boxes and boxes[-1][0] < close:  # inside this one
            boxes.pop()
        before = text[max(0, start - 40) : start]
        content = (opening[2] or text[opening.end() : close - 1]).strip()
        if re.search(r"(?:=|\$|\\\[|\\\()\s*[-−]\s?$", before):
            content = f"-{content}" if re.fullmatch(r"[\d.,]+", content) else f"-({content})"
        if not _DENIED.search(before) and not _CALCULATED.match(text, close):
            boxes.append((start, close, content))
    return boxes[::-1], unfinished


def _closing(text: str, start: int) -> int:
    """The end of the brace that was opened before `start`; -1 if it is not closed soon."""
    depth = 1
    for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start, start + LONGEST):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.end()
    return -1


def _last_boxes(text: str, boxes: list[_Box]) -> Statement | None:
    """The last box, with those before it that only `and` or a comma separates from it."""
    if not boxes:
        return None
    first = len(boxes) - 1
    while first > 0:
        between = text[boxes[first - 1][1] : boxes[first][0]]
        if len(between) > 60 or not _JOINED.fullmatch(between):
            break
        first -= 1
    parts = tuple(dict.fromkeys(content for _, _, content in boxes[first:]))
    return Statement(boxes[-1][0], boxes[-1][1], parts, certain=True)


def _tagged(text: str, mode: Mode) -> Statement | None:
    """<answer>...</answer>; `any` takes one that is not closed, as a stop word leaves it."""
    tags = list(_TAG.finditer(text))
    closing = next((k for k in reversed(range(len(tags))) if tags[k][1]), len(tags))
    opening = next((tag for tag in reversed(tags[:closing]) if not tag[1]), None)
    if opening is None or (closing == len(tags) and mode == "boxed"):
        return None
    start, end = tags[closing].span() if closing < len(tags) else (len(text), len(text))
    content = text[opening.end() : start].strip()
    if len(content) > LONGEST:
        return None
    return Statement(opening.start(), end, (content,) if content else (), certain=True)


def _hashed(text: str) -> Statement | None:
    """What stands after GSM8K's ####, to the end of its line."""
    start = text.rfind("####")
    content = text[start + 4 : start + 4 + CLAUSE].lstrip("# \t") if start >= 0 else ""
    content = re.sub(r"^[*_]*(?:the )?(?:final )?answer[*_]*(?: is)?[\s:*_]*", "", content, flags=re.IGNORECASE)
    return _read(text, content, start, start)


def _phrase(text: str, mode: Mode) -> Statement | None:
    """`The answer is ...`: the last one, and in a strict text nothing that may be another answer after it."""
    start = len(text)
    for _ in range(MOST_PHRASES):
        start = max(text.rfind(word, 0, start) for word in ("nswer", "NSWER"))
        if start < 1:
            return None
        line = text.rfind("\n", max(0, start - 40), start) + 1
        heading = (line or start <= 40) and re.fullmatch(
            r"(?i)[#*_\s]*(?:(?:the|my|our)\s)?(?:final\s)?", text[line : start - 1]
        )
        phrase = _PHRASE.match(text, start - 1, start + 120)
        phrase = phrase or (_HEADING.match(text, start - 1, start + 20) if heading else None)
        if phrase is None:
            continue
        before = re.split(r"[.?!:;,]\s|\n", text[max(0, start - 100) : start - 1])[-1]
        if _SUPPOSED.search(before):  # I doubt that the answer is
            return Statement(start, start)
        content = text[phrase.end() : phrase.end() + CLAUSE]
        statement = _read(text, content, start, phrase.end())
        if statement and mode == "boxed" and re.search(r"\d", text[statement.end : phrase.end() + TAIL]):
            return None
        return statement
    return None


def _read(text: str, content: str, start: int, after: int) -> Statement | None:
    """What a clause says is the answer: a value, the one number in it, or else its words; of a question, nothing.

    The clause is the first sentence of the content, without what a subordinate clause adds to it.
    """
    content = content.lstrip(" \t\n*_:")
    sentence = _SENTENCE.search(content)
    value = content[: sentence.start()] if sentence else content
    value = value[: continued.start()] if (continued := _CONTINUED.search(value)) else value
    value = value.strip().rstrip("*_ ")
    if not value:
        return None
    end = text.find(value, after) + len(value)
    if sentence is not None and sentence[0] == "?":
        return Statement(start, end)
    value = value[filler.end() :] if (filler := _FILLER.match(value)) else value
    if _VALUE.match(value):
        return Statement(start, end, (value,), certain=True)
    numbers = list(_NUMBER.finditer(value))
    if not numbers:
        return Statement(start, end, (value,) if value else ())
    if _OPEN.search(value):
        return Statement(start, end)
    return Statement(start, end, (value[numbers[0].start() :].strip(),), certain=True) if len(numbers) == 1 else None


def _displayed(text: str) -> str | None:
    """The displayed mathematics at the end of a text."""
    text = text.strip()
    for opening, closing in (("\\[", "\\]"), ("$$", "$$")):
        if text.endswith(closing):
            start = text.rfind(opening, 0, len(text) - 2)
            before = text[max(0, start - TAIL) : max(0, start)]
            if start >= 0 and len(text) - start <= LONGEST and not _GIVES_UP.search(before):
                return text[start + 2 : -2].strip()
    return None


def _alone(text: str) -> str | None:
    """A text that is nothing but an answer: a value with its unit, or words without any number."""
    text = text.strip()
    if not text or len(text) > LONGEST_ALONE or "\n" in text:
        return None
    if _VALUE.match(text.lstrip("*_`=:≈ \u200b\ufeff")):
        return text
    return None if re.search(r"[\d\\]", text) else text


def _last_result(text: str) -> str | None:
    """For `any`: the result in the last sentence that has one, if the text does not give up or leave it open."""
    tail = re.sub(r"<<[^<>\n]{0,100}>>", "", text[-TAIL:]).rstrip()  # annotations of GSM8K's calculator
    sentences = [sentence for sentence in re.split(r"(?<=[.?!])\s|\n", tail) if re.search(r"[\d\\]", sentence)]
    last = sentences[-1].strip(" .*_") if sentences else ""
    if not last or _HEDGED.search(last) or _GIVES_UP.search(tail[-TAIL // 2 :]):
        return None
    last = re.sub(r"\$(?=\s?[\d.])(?![^$]*[\\^_=][^$]*\$)", "", last)  # money, not mathematics
    if spans := re.findall(r"\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", last):
        return str(max(spans[-1], key=len))
    last = last.replace("$", "")
    equals = last.rfind("=")
    results = [match for match in _RESULT.finditer(last) if not re.match(r"[a-zA-Z][\d.]", last[match.start() - 1 :])]
    results = [match for match in results if match.start() > equals >= 0][:1] or results[-1:]
    if not results:
        return None
    result, unit = results[0][0].strip(), _SCALE.match(last, results[0].end())
    term = _TERM.search(last[:equals]) if 0 <= equals < results[0].start() else None
    # The sum before it is checked too, unless words are part of it: 14 hours * 10 = 140.
    whole = term is not None and not re.search(r"[-*/+×÷−–x(]\s*$", last[: term.start()])
    return (f"{term[0]} = " if term and whole else "") + result + (unit[0] if unit else "")
