"""What sentences say about the answer: which value they state, and whether they deny it, doubt it or give up."""

import re
from dataclasses import dataclass
from typing import Literal, get_args

__all__ = [
    "CLAUSE",
    "MODES",
    "TAIL",
    "VALUE",
    "Found",
    "Mode",
    "clause",
    "denied",
    "gives_up",
    "last_result",
    "phrase",
    "read",
    "withdrawn",
]

Mode = Literal["boxed", "any"]
MODES: tuple[str, ...] = get_args(Mode)

MOST_PHRASES = 4
CLAUSE = 300  # characters read after a phrase
TAIL = 600  # characters at the end of a text in which `any` looks for a result

_ANSWER = r"(?:[Aa]nswers?|ANSWERS?)[*_]{0,3}"
_PHRASE = re.compile(
    rf"{_ANSWER}(?:(?:\s+(?:to|of|for)\s[^.\n:=]{{1,80}}?)?(?:,? (?:then|therefore|thus|hence|indeed),?)?\s{{0,4}}"
    r"(?:(?:must|should|will|would|has to|turns out to|works out to)\s+be|comes (?:out )?to"
    r"|is|are|was|be|equals?|:|becomes)|\s{0,4}=)(?![a-zA-Z])[\s:*_]{0,8}"
)
_DENYING = re.compile(
    rf"{_ANSWER}\s+(?:(?:is|was|are|ca|could|would|should|wo|do|does)n['’]t|cannot|can not"
    r"|(?:can|could|might|may) be)\b"
)
_HEADING = re.compile(rf"{_ANSWER}:?[*_]{{0,3}}[ \t]*\n")
_HEADED = re.compile(r"[#*_\s]*(?:(?:the|my|our)\s)?(?:final\s)?", re.IGNORECASE)
_SUPPOSED = re.compile(
    r"\b(?:suppos\w+|assum\w+|pretend|imagine|if|unless|whether|when)\s+(?:that\s+)?(?:\w+\s+){0,3}$"
    r"|(?:\b(?:doubt(?:s|ful)?|unlikely|false|untrue|incorrect|wrong|nobody|no one|wonder|disagree)"
    r"|(?:n['’]t|\b(?:not|cannot|never))\s+(?:\w+\s+){0,2}(?:true|likely|sure|certain|say|think|believe|know|mean|conclude"
    r"|claim|case|find))\b[^,]*$",
    re.IGNORECASE,
)
_FILLER = re.compile(
    r"(?:(?:equal to|exactly|approximately|about|roughly|around|simply|just|therefore|thus|indeed|given by|still|now"
    r"|the|a total of|an?|clearly|then|also|both|number|value|option|choice|letter)(?![a-zA-Z])|[\s:=*_≈])+",
    re.IGNORECASE,
)
VALUE = re.compile(
    r"[-+−–]?\s?(?:[\d$£€¥₹\\(\[{√∛½¼¾⅓⅔π.∞]|[a-zA-Z](?:$|\s{0,2}[=^+\-*/(<>≤≥_≠\\]|[.,]?$)|[A-J][).]\s"
    r"|(?:USD|EUR|GBP|INR|Rs\.?|US\$)\s?[\d$\\])"
)
_SENTENCE = re.compile(r"(?<!^[A-J])[.?](?=\s|$|\*)|!(?=\s*$|\s+[A-Z]|\*)|\n|<[|/a-z]|```")
_CONTINUED = re.compile(
    r",? (?:because|since|which|as|therefore|after|where|when|given|making|meaning|assuming)(?![a-zA-Z])"
    r"|, (?=[a-z]{2,}\b(?<!and)(?<!or))|\s\((?=[^()\\]*[a-z]{3}|[\d\s.]+[-+*/×=])|\s[-–—]\s(?=[a-zA-Z]{2})|;\s"
)
_NUMBER = re.compile(r"[-+−–]?\s?[$£€]?\s?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")
_OPEN = re.compile(
    r"\b(?:not|no|or|either|neither|nor|between|maybe|perhaps|possibly|might|could|may|cannot|unknown|unclear|unsure"
    r"|at least|at most|than|greater|fewer|guess|uncertain|undetermined|impossible|never|if|unless|except|but"
    r"|minus|plus|times|divided|multiplied|negative|half|third|quarter|twice|double|triple|thrice|root|squared?|cubed?"
    r"|log|power|reciprocal|inverse|opposite|factorial|near|nearly|almost|close|up to|under|over|above|below|beyond"
    r"|before|after|next|previous|within|without|any|anything|something|candidates?|among|one of|outside|inside)\b"
    r"|n['’]t\b",
    re.IGNORECASE,
)
_LEADS = re.compile(
    r"(?:\b(?:is|are|was|were|be|has|have|had|gets?|got|makes?|made|earns?|earned|costs?|pays?|paid|spends?|spent|needs?"
    r"|needed|takes?|took|totals?|equals?|sells?|sold|saves?|saved|eats?|ate|with|gives?|gave|sums?|leaves?|left|of|to"
    r"|collects?|receives?|received|owes?|buys?|bought|only|remain|remains|remaining|drives?|travels?|uses?|used|by)"
    r"|[:=])[\s:*_$\\(]*$",
    re.IGNORECASE,
)
_GIVEN_UP = re.compile(
    r"\b(?:can(?:not|['’]t| not)|could(?:n['’]t| not)|unable|(?:do|does|did)(?:n['’]t| not) know|not (?:sure|certain"
    r"|know|enough|able|possible|clear)|no idea|giv(?:e|ing) up|maybe|perhaps|possibly|guess|unclear|unsure|uncertain"
    r"|impossible|insufficient|undetermined|(?:might|could|may) be)\b",
    re.IGNORECASE,
)
_GIVING_UP = re.compile(
    r"\b(?:I|we)(?:['’]m| am| are)?\s(?:[a-z]+\s){0,2}(?:can(?:not|['’]t| not)|could(?:n['’]t| not)|unable"
    r"|do(?:n['’]t| not) know|not (?:sure|certain|able)|no idea|giv(?:e|ing) up|guess|unsure|uncertain)\b"
    r"|\b(?:not enough information|insufficient|undetermined|no idea|maybe|perhaps|unclear"
    r"|impossible to|more information|unable to (?:solve|determine|answer|find|compute)"
    r"|cannot be (?:determined|solved))\b",
    re.IGNORECASE,
)
_RETRACTED = re.compile(r"\b(?:wait|wrong|incorrect|mistake|actually|hmm|scratch that|correction)\b", re.IGNORECASE)
_WITHDRAWN = re.compile(
    r"\bwait[,.!…:]|\b(?:no,? wait|scratch that|on second thought|i (?:made|have made) an? (?:mistake|error)"
    r"|i was wrong"
    r"|(?:that|this|it|which)(?:(?:['’]s| is| was) (?:wrong|incorrect|false|not (?:right|correct))"
    r"|(?: is| was)n['’]t (?:right|correct)| can(?:not|['’]t) be (?:right|correct)))\b"
    r"|^[\s$*.)\]\\}]*(?:is|was)(?:n['’]t| not| wrong| incorrect| false)\b",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"(?:\b(?:not|never|neither|nor|cannot)|n['’]t)(?:\s+(?:be|equal|simply|just|actually|to|the|answer)){0,3}[\s$*:\\(\[{]*$"
    r"|(?:\\neq?|≠|!=|\\not\s?=)[\s{]*$",
    re.IGNORECASE,
)
_ANNOTATION = re.compile(r"<<[^<>\n]{0,100}>>")  # of GSM8K's calculator
_HEDGED = re.compile(
    r"\b(?:maybe|perhaps|possibly|guess|either|neither|nor|(?:might|could|may) be|suppose|assume|doubt)\b"
    r"|^(?:let|try|testing|consider)\b"
    r"|\b(?:not|n['’]t|never|negative|minus|at least|at most|(?:more|less|greater|fewer) than|between|up to|half of"
    r"|twice|question is about)(?: be| equal| equal to)?\W{0,4}\d"
    r"|\d\s?(?:[a-z]{1,12}\s)?or\s\W?\d"
    r"|\bnot (?:true|the case|an?\s|the\s)|\b(?:need|want|try|trying|let['’]?s?|us|me) (?:to )?"
    r"(?:find|check|compute|determine|calculate|solve|try|verify|see|test)\b|\bwould\b.*\bif\b|\?$"
    r"|\b(?:is|are|was)(?: not|n['’]t)\b[^,]*$|\bwhether\b",
    re.IGNORECASE,
)
_RESULT = re.compile(rf"[-+−–]?\s?[$£€]?\s?(?:\d+ )?\d+\s?/\s?\d+|{_NUMBER.pattern}")
_WORDS = re.compile(r"[a-zA-Z\s,:;'’\"*_$-]*")
_TERM = re.compile(r"(?<![\w.])[\d(][-−–\d\s*/().,×·÷+x]*$")
_SCALE = re.compile(r"\s?(?:\\?%|percent|per cent|hundred|thousand|million|billion)(?![a-zA-Z])")


@dataclass(frozen=True)
class Found:
    """Where a text states an answer. Without parts the statement leaves the answer open."""

    start: int
    end: int
    parts: tuple[str, ...]
    certain: bool  # it is a value; other words count only where nothing else is stated


def denied(before: str) -> bool:
    """Whether the words before a value deny it, as in `not 18`."""
    return bool(_DENIED.search(before))


def withdrawn(after: str) -> bool:
    """Whether the words after a statement take it back."""
    return bool(_WITHDRAWN.search(after))


def gives_up(before: str) -> bool:
    """Whether a text gives up, or leaves the answer open."""
    return bool(_GIVEN_UP.search(before))


def phrase(text: str, mode: Mode) -> Found | None:
    """`The answer is ...`: the last one, and in a strict text nothing that may be another answer after it."""
    end = len(text)
    for _ in range(MOST_PHRASES):
        start = max(text.rfind(word, 0, end) for word in ("nswer", "NSWER"))
        if start < 1:
            return None
        end = start
        if _DENYING.match(text, start - 1, start + 120):
            return Found(start, start, (), certain=False)
        found = _PHRASE.match(text, start - 1, start + 120) or _heading(text, start)
        if found is None:
            continue
        content = text[found.end() : found.end() + CLAUSE]
        if _supposed(text[max(0, start - 100) : start - 1]):
            return Found(start, start, (), certain=False)
        if display := re.match(r"(?:\\\[|\$\$)(.+?)(?:\\\]|\$\$)", content, re.DOTALL):
            return Found(start, found.end() + display.end(), (display[1].strip(),), certain=True)
        value, question = clause(content)
        place = text.find(value, found.end()) + len(value)
        rest = text[place : found.end() + TAIL] if value else ""
        if mode == "boxed" and (re.search(r"\d", rest) or _RETRACTED.search(rest)):
            return None
        if question:
            return Found(start, place, (), certain=False)
        return read(value, start, place, mode) if value else None
    return None


def _heading(text: str, start: int) -> re.Match[str] | None:
    """A line that says no more than `Final answer`; what it states follows."""
    line = text.rfind("\n", max(0, start - 40), start) + 1
    if line == 0 and start > 40:
        return None
    return _HEADING.match(text, start - 1, start + 20) if _HEADED.fullmatch(text, line, start - 1) else None


def _supposed(before: str) -> bool:
    """Whether the sentence that a phrase ends supposes or denies it: `I doubt that the answer is`."""
    return bool(_SUPPOSED.search(re.split(r"[.?!:;,]\s|\n", before)[-1]))


def read(value: str, start: int, end: int, mode: Mode) -> Found | None:
    """What a clause says is the answer: a value, the one number in it, or else its words."""
    value = value[filler.end() :] if (filler := _FILLER.match(value)) else value
    if VALUE.match(value):
        return Found(start, end, (value,), certain=True)
    numbers = list(_NUMBER.finditer(value))
    if not numbers:
        return Found(start, end, (value,) if value else (), certain=False)
    before = value[: numbers[0].start()]
    if _OPEN.search(value) or not _WORDS.fullmatch(before) or (mode == "boxed" and not _LEADS.search(before)):
        return Found(start, end, (), certain=False)
    return Found(start, end, (value[numbers[0].start() :].strip(),), certain=True) if len(numbers) == 1 else None


def clause(content: str) -> tuple[str, bool]:
    """The first sentence of a text without what a subordinate clause adds to it, and whether it is a question."""
    content = content.lstrip(" \t\n*_:")
    question = False
    if end := _SENTENCE.search(content):
        question = end[0] == "?"
        content = content[: end.start()]
    if end := _CONTINUED.search(content):
        content = content[: end.start()]
    return content.strip().rstrip("*_ "), question


def last_result(text: str) -> str | None:
    """For `any`: the result in the last sentence that has one, if the text does not give up or leave it open."""
    tail = _ANNOTATION.sub("", text[-TAIL:]).rstrip()
    if _GIVING_UP.search(tail[-TAIL // 2 :]):
        return None
    sentences = re.split(r"(?<=[.?!])\s|\n", tail)
    place = max((k for k, part in enumerate(sentences) if re.search(r"[\d\\]", part)), default=-1)
    last = sentences[place].strip(" .*_") if place >= 0 else ""
    if not last or _HEDGED.search(last) or any(_GIVEN_UP.search(part) for part in sentences[place + 1 :]):
        return None
    last = re.sub(r"\$(?=\s?[\d.])(?![^$]*[\\^_=][^$]*\$)", "", last)  # money, not mathematics
    if spans := re.findall(r"\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", last):
        return str(max(spans[-1], key=len))
    last = last.replace("$", "")
    results = [
        match for match in _RESULT.finditer(last) if not re.match(r"[a-zA-Z][\d.]", last[max(0, match.start() - 1) :])
    ]
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
