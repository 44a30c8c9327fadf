"""Answers per second of the verifier on one core, and the dearest answer of 64,000 characters that is not mathematics.

python benchmarks/verifier.py
"""

import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fspo.tasks.verify import equal

CORPUS = Path(__file__).resolve().parents[1] / "tests" / "hostile" / "answers.jsonl"
LENGTH = 64_000


def rate(cases: Sequence[tuple[str, str]], rounds: int = 5) -> float:
    """Median of answers per second over the rounds."""
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        for gold, text in cases:
            equal(gold, text)
        found.append(len(cases) / (time.perf_counter() - start))
    return statistics.median(found)


def main() -> None:
    draw = random.Random(0)
    numbers = [str(draw.randrange(100_000)) for _ in range(5000)]
    spellings: dict[str, Callable[[str], str]] = {
        "number in a box": lambda n: f"so \\boxed{{{n}}}",
        "number after ####": lambda n: f"9 * 2 = {n}\n#### {n}",
        "number with a unit": lambda n: f"#### {n} dollars per day",
        "<answer> tags": lambda n: f"<think>1 2 3</think><answer>{n}</answer>",
        "the answer is": lambda n: f"The answer is {n}.",
    }
    for what, spell in spellings.items():
        print(f"{what:<24}{rate([(n, spell(n)) for n in numbers]):>10,.0f} answers/s")
    expressions = [
        ("x^2+2x+1", "\\boxed{(x+1)^2}"),
        ("\\frac{\\pi}{2}", "\\boxed{\\pi/2}"),
        ("3+2i", "\\boxed{2 i + 3}"),
    ]
    print(f"{'expressions':<24}{rate(expressions * 20):>10,.0f} answers/s")
    rows = [json.loads(line) for line in CORPUS.read_text("utf-8").splitlines()]
    wrong = sum(equal(row["reference"], row["answer"], row["mode"]) is not row["right"] for row in rows)
    print(f"{'hostile corpus':<24}{wrong:>10} errors of {len(rows)}")
    parts = [
        "1234567890",
        "{",
        "}",
        "\\",
        "\\boxed{",
        "\\boxed{5",
        "####",
        "<answer>",
        "<think>",
        "answer is ",
        "√½−π²",
        "$",
    ]
    seconds = {}
    for part in parts:
        start = time.perf_counter()
        equal("18", (part * LENGTH)[:LENGTH], "any")
        seconds[part] = time.perf_counter() - start
    worst = max(seconds, key=lambda part: seconds[part])
    print(f"{'64,000 characters':<24}{seconds[worst] * 1e3:>10.1f} ms at most ({worst!r} repeated)")


if __name__ == "__main__":
    main()
