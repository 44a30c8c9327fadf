"""Errors and speed of the verifier on labelled answers: right ones it rejects, wrong ones it accepts.

python benchmarks/verifier.py --data ../shared/data

The labelled answers are the hostile corpus of the tests; GSM8K references in the renderings of models, with wrong ones
beside them; MATH-500 references in eight renderings, and those of other problems of the same kind as wrong answers;
lists, pairs, sets and intervals; and references of reasoning_gym, written as LaTeX by sympy. Everything is
deterministic. To measure another commit, run this file with PYTHONPATH set to that commit's src.
"""

import argparse
import json
import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fspo.tasks.verify import equal, reference

ROOT = Path(__file__).resolve().parents[1]
LENGTH = 64_000
RENDERINGS = (
    "So \\boxed{%s}",
    "$\\boxed{%s.}$",
    "Thus\n\\[ \\boxed{ %s }. \\]",
    "<think>\\boxed{-98765}</think><answer>%s</answer>",
    "#### %s",
    "The answer is $%s$.",
    "**Final Answer:** $%s$",
    "Hence\n\\[ %s. \\]",
)
NOISE = ("1234567890", "{", "}", "\\", "\\boxed{", "\\boxed{5", "####", "<answer>", "<think>", "answer is ", "√½−π²")


class Case(NamedTuple):
    """A reference, an answer, and whether the answer is right."""

    reference: str
    answer: str
    right: bool


def lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def hostile() -> list[Case]:
    rows = lines(ROOT / "tests" / "hostile" / "answers.jsonl")
    return [Case(row["reference"], row["answer"], bool(row["right"])) for row in rows]


def gsm8k(data: Path) -> Iterator[Case]:
    """Solutions as they are, in boxes, in tags and in prose; the next number, and the same with a digit more."""
    for k, row in enumerate(lines(data / "gsm8k_test.jsonl")):
        text, gold = row["answer"], reference(row["answer"])
        near = str(int(gold) + 1)
        prose = text.rsplit("####", 1)[0]
        yield Case(gold, (text, f"{text} dollars", f"{prose}The answer is {gold} eggs.")[k % 3], True)
        yield Case(gold, f"{prose}\\boxed{{{RENDERED[k % len(RENDERED)] % gold}}}", True)
        yield Case(near, text, False)
        wrong = (f"{text}0", f"{text} or {near}", f"{text}\n#### {near}", f"<think>{text}")[k % 4]
        yield Case(gold, wrong, gold == "0" and k % 4 == 0)


RENDERED = ("%s", "%s.00", "\\$%s", "%s\\text{ apples}", "x = %s", "%s \\text{ dollars per day}", "\\text{%s}", " %s. ")


def kind(answer: str) -> str:
    """A rough sort of answer, so that wrong answers look like right ones."""
    if re.fullmatch(r"[-\d,.]+", answer):
        return "number"
    if re.match(r"\\text|\\mbox", answer):
        return "words"
    if re.search(r"^(?:\\left)?[(\[]|\\cup|,", answer):
        return "list"
    return "equation" if "=" in answer else "expression"


def math500(data: Path) -> Iterator[Case]:
    answers = [row["answer"] for row in lines(data / "math500.jsonl")]
    for answer in answers:
        yield from (Case(answer, rendering % answer, True) for rendering in RENDERINGS)
    draw = random.Random(0)
    for answer in answers:
        others = sorted({other for other in answers if kind(other) == kind(answer) and not same_text(other, answer)})
        for other in draw.sample(others, min(3, len(others))):
            yield Case(answer, f"\\boxed{{{other}}}", False)


def same_text(first: str, second: str) -> bool:
    """Whether two references of MATH-500 may have one value (1000 and 1,000, or +3 and 3)."""
    return re.sub(r"\\text|[^\w/-]|_", "", first) == re.sub(r"\\text|[^\w/-]|_", "", second)


def listed() -> Iterator[Case]:
    """Lists, pairs, sets and intervals of parts with one to four digits, fractions, roots and infinities."""
    draw = random.Random(1)
    parts = ["0", "1", "-3", "7", "12", "100", "250", "-105", "999", "1024", "\\frac{1}{2}", "\\sqrt{2}", "2.5", "\\pi"]
    for _ in range(400):
        a, b, c = sorted(draw.sample(parts, 3), key=lambda part: VALUES.get(part) or float(part))
        low, high = draw.choice("(["), draw.choice(")]")
        interval = f"{low}{a}, {b}{high}"
        yield Case(interval.replace(" ", ""), f"\\boxed{{{interval}}}", True)
        yield Case(interval, f"\\boxed{{\\left{low}{a},{b}\\right{high}}}", True)
        yield Case(interval, f"\\boxed{{{low}{a}, {c}{high}}}", False)
        yield Case(f"[{a},{b})", f"\\boxed{{[{a},{b}]}}", False)
        yield Case(f"({a},{b},{c})", f"\\boxed{{({a}, {b}, {c})}}", True)
        yield Case(f"({a},{b},{c})", f"\\boxed{{({b}, {a}, {c})}}", False)
        yield Case(f"({b},{a})", f"\\boxed{{({b}, {a})}}", True)
        yield Case(f"({b},{a})", f"\\boxed{{({a}, {b})}}", False)
        yield Case(f"\\{{{a},{b},{c}\\}}", f"\\boxed{{\\{{{c}, {a}, {b}\\}}}}", True)
        yield Case(f"\\{{{a},{b}\\}}", f"\\boxed{{\\{{{a}, {c}\\}}}}", False)
        yield Case(f"{a}, {b}, {c}", f"\\boxed{{{b}, {c}, {a}}}", True)
        yield Case(f"{a}, {b}", f"\\boxed{{{a}}}", False)
        yield Case(f"(-\\infty,{a})\\cup({b},\\infty)", f"\\boxed{{(-\\infty, {a}) \\cup ({b}, \\infty)}}", True)
        yield Case(f"(-\\infty,{a})\\cup({b},\\infty)", f"\\boxed{{(-\\infty, {a}) \\cup ({c}, \\infty)}}", False)
        yield Case(f"(-\\infty,{a}]", f"\\boxed{{x \\le {a}}}", True)
        yield Case(f"({a},100)", f"\\boxed{{{a}100}}", False)


VALUES = {"\\frac{1}{2}": 0.5, "\\sqrt{2}": 1.4142, "\\pi": 3.1416}


def reasoning_gym() -> Iterator[Case]:
    """References of symbolic data sets: as they are, as LaTeX, and those of other questions as wrong answers."""
    import sympy
    from reasoning_gym import create_dataset

    for name in ("polynomial_multiplication", "simple_equations", "fraction_simplification", "decimal_arithmetic"):
        answers = sorted({str(row["answer"]) for row in create_dataset(name, size=150, seed=0)})
        draw = random.Random(2)
        for answer in answers:
            value = sympy.sympify(answer.strip("$")) if "\\" not in answer else None
            gold = answer.strip("$") if value is None else sympy.latex(value)
            yield Case(gold, f"\\boxed{{{answer.replace('**', '^')}}}", True)
            yield Case(gold, f"The answer is ${gold}$.", True)
            yield Case(gold, f"\\boxed{{{draw.choice([other for other in answers if other != answer])}}}", False)
            if name == "polynomial_multiplication" and value is not None:
                yield Case(gold, f"\\boxed{{{sympy.latex(sympy.factor(value))}}}", True)
                yield Case(gold, f"\\boxed{{{sympy.latex(value + sympy.Symbol('x'))}}}", False)


def measure(name: str, cases: Sequence[Case], show: int) -> None:
    """One line of the table, with progress on a terminal or in a log."""
    start = time.process_time()
    errors: dict[bool, list[Case]] = {True: [], False: []}
    for k, case in enumerate(cases):
        if k % 500 == 0:
            print(f"{name}: {k} of {len(cases)}", file=sys.stderr, flush=True)
        if equal(case.reference, case.answer) is not case.right:
            errors[case.right].append(case)
    seconds = time.process_time() - start
    rate = len(cases) / seconds
    print(f"| {name} | {len(cases):,} | {len(errors[True])} | {len(errors[False])} | {rate:,.0f} |", flush=True)
    for case in (errors[True] + errors[False])[:show]:
        print(f"  {'rejected' if case.right else 'accepted'} {case.reference!r}: {case.answer!r}", file=sys.stderr)


def speed() -> None:
    """Answers per second for plain numbers, and the slowest of the long answers that are no mathematics."""
    draw = random.Random(0)
    numbers = [str(draw.randrange(100_000)) for _ in range(2000)]
    for rendering in ("so \\boxed{%s}", "9 * 2 = 7\n#### %s dollars", "The answer is %s."):
        rates = []
        for _ in range(5):
            start = time.process_time()
            for number in numbers:
                equal(number, rendering % number)
            rates.append(len(numbers) / (time.process_time() - start))
        print(f"{rendering!r}: {statistics.median(rates):,.0f} answers/s")
    seconds = {}
    for part in NOISE:
        start = time.process_time()
        equal("18", (part * LENGTH)[:LENGTH])
        seconds[part] = time.process_time() - start
    worst = max(seconds, key=lambda part: seconds[part])
    print(f"{LENGTH:,} characters that are no mathematics: {seconds[worst] * 1e3:.1f} ms at most ({worst!r} repeated)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of the JSON lines")
    parser.add_argument("--show", type=int, default=0, help="print so many errors per set")
    parser.add_argument("--only", help="measure one set")
    given = parser.parse_args()
    sets: dict[str, Callable[[], list[Case]]] = {
        "hostile": hostile,
        "GSM8K": lambda: list(gsm8k(given.data)),
        "MATH-500": lambda: list(math500(given.data)),
        "lists and intervals": lambda: list(dict.fromkeys(listed())),
        "reasoning_gym": lambda: list(reasoning_gym()),
    }
    equal("x+1", "\\boxed{1+x}")  # imports sympy
    print(
        "| answers | number | right, rejected | wrong, accepted | per second of processor time |\n|---|---|---|---|---|"
    )
    for name, cases in sets.items():
        if given.only in (None, name):
            measure(name, cases(), given.show)
    if given.only is None:
        speed()


if __name__ == "__main__":
    main()
