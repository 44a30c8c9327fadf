"""The verifier: the hostile corpus, public references in several spellings, and what any answer may cost."""

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fspo.tasks as tasks
from fspo.tasks import Scorer
from fspo.tasks.verify import MODES, Mode, equal, final_answer, reference, symbolic

CORPUS = Path(__file__).resolve().parents[1] / "hostile" / "answers.jsonl"
LENGTH = 64_000
LIMIT = 0.020  # seconds for an answer that is not mathematics


def corpus() -> list[dict[str, Any]]:
    return [json.loads(line) for line in CORPUS.read_text("utf-8").splitlines()]


def errors(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if equal(row["reference"], row["answer"], mode(row["mode"])) is not row["right"]]


def test_a_third_of_the_hostile_answers() -> None:
    """Rows are added when a wrong verdict is found; all of them hold today."""
    assert errors(corpus()[::3]) == []


@pytest.mark.slow
def test_hostile_answers() -> None:
    rows = corpus()
    assert len(rows) >= 2500
    assert errors(rows) == []


def mode(name: str) -> Mode:
    return "any" if name == "any" else "boxed"


def test_the_corpus_has_both_verdicts_and_both_modes() -> None:
    rows = corpus()
    assert {row["mode"] for row in rows} == set(MODES)
    assert 0.3 < sum(bool(row["right"]) for row in rows) / len(rows) < 0.7
    assert len({(row["answer"], row["reference"], row["mode"]) for row in rows}) == len(rows)


SPELLINGS: list[Callable[[str], str]] = [
    lambda a: f"So \\boxed{{{a}}}",
    lambda a: f"$\\boxed{{{a}.}}$",
    lambda a: f"Thus\n\\[ \\boxed{{ {a} }}. \\]",
    lambda a: f"<think>\\boxed{{-98765}}</think><answer>{a}</answer>",
    lambda a: f"#### {a}",
    lambda a: f"The answer is ${a}$.",
    lambda a: f"**Final Answer:** ${a}$",
    lambda a: f"Hence\n\\[ {a}. \\]",
]


@pytest.mark.parametrize("name", MODES)
def test_every_math_answer_equals_itself_in_several_spellings(name: str, shared: Path) -> None:
    answers = [json.loads(line)["answer"] for line in (shared / "math500.jsonl").read_text().splitlines()]
    cases = [(a, spell(a)) for a in answers for spell in SPELLINGS]
    assert len(cases) == 4000
    assert [case for case in cases if not equal(*case, mode(name))] == []


def test_no_math_answer_equals_another(shared: Path) -> None:
    answers = [json.loads(line)["answer"] for line in (shared / "math500.jsonl").read_text().splitlines()]
    others = answers[:]
    random.Random(0).shuffle(others)
    cases = [(a, f"\\boxed{{{b}}}") for a, b in zip(answers, others, strict=True) if a != b]
    assert [case for case in cases if equal(*case)] == []


def test_every_gsm8k_solution_has_its_own_answer_and_no_other(shared: Path) -> None:
    solutions = [json.loads(line)["answer"] for line in (shared / "gsm8k_train.jsonl").read_text().splitlines()]
    assert len(solutions) > 7000
    wrong = []
    for text in solutions:
        gold = reference(text)
        near = str(int(gold) + 1)
        right = [
            text,
            f"{text} dollars",
            f"{text}.",
            f"<think>#### {near}</think>{text}",
            f"The answer is {gold} eggs.",
        ]
        wrong += [(gold, answer) for answer in right if not equal(gold, answer)]
        false = [f"{text}0", f"{text} or {near}", f"{text}\n#### {near}", f"<think>{text}", f"\\boxed{{0 = {gold}1}}"]
        wrong += [(near, text)] if equal(near, text) else []
        wrong += [(gold, answer) for answer in false if equal(gold, answer) and gold != "0"]
    assert wrong == []


def test_results_in_prose_count_in_the_lenient_mode_only(shared: Path) -> None:
    solutions = [json.loads(line)["answer"] for line in (shared / "gsm8k_test.jsonl").read_text().splitlines()]
    cases = [(reference(text), text.rsplit("####", 1)[0]) for text in solutions]
    assert sum(equal(*case, "any") for case in cases) > 0.95 * len(cases)
    assert sum(equal(*case, "boxed") for case in cases) < 0.05 * len(cases)


def filled(part: str) -> str:
    return (part * (LENGTH // len(part) + 1))[:LENGTH]


NOISE = {
    **{part: filled(part) for part in ("1234567890", "7 ", "1,", "{", "}", "{}", "\\", "\\\\{", "(", "[(", "=", "1=")},
    **{part: filled(part) for part in ("\\boxed{", "\\boxed{5", "\\boxed", "\\boxed  ", "\\fbox{", "####", "#### 1")},
    **{
        part: filled(part)
        for part in ("<answer>", "</answer>", "<think>", "</think>", "answer is ", "Answer:", "$", "$1")
    },
    **{
        part: filled(part)
        for part in ("√½−π²", "\u2009", "😀", "\n", " ", "\\[ 1 ", "\\] ", "\\frac{1}{", "maybe 5 or 7 ")
    },
    "nested boxes": "\\boxed{" * 4000 + "5" + "}" * 4000,
    "closed too often": "\\boxed{" * 6000 + "5" + "}" * 22000,
    "digits in a box": "\\boxed{" + filled("1"),
    "short digits in a box": filled("cow ") + "\\boxed{" + "1" * 900 + "}",
    "brackets in a box": filled("cow ") + "\\boxed{" + "(" * 200 + "1" + ")" * 200 + "}",
    "signs in a box": filled("cow ") + "\\boxed{" + "1\\pm " * 90 + "1}",
    "chain in a box": filled("cow ") + "\\boxed{" + "x+1=" * 90 + "1}",
    "fractions in a box": filled("cow ") + "\\boxed{" + "\\frac{" * 100 + "}",
    "letters in a box": "\\boxed{5 " + "sqrt" * 200 + "1}",
    "units in a box": "\\boxed{5 " + "m^2 " * 29 + "!}",
    "many units in a box": "\\boxed{5 " + "km/h " * 150 + "!}",
    "open answer": "<answer>" + filled("1"),
    "answer and spaces": "the answer" + filled(" "),
    "answer and digits": "the answer is " + filled("7"),
    "hash and digits": "#### " + filled("3"),
    "characters": "".join(chr(random.Random(1).randrange(32, 50_000)) for _ in range(LENGTH)),
    "printable": "".join(random.Random(2).choices([chr(c) for c in range(32, 127)], k=LENGTH)),
}


@pytest.mark.parametrize("name", MODES)
def test_no_long_answer_is_costly(name: str) -> None:
    """Processor time, and the least of five: other processes share the machine."""
    equal("x", "\\boxed{1}")  # imports
    slow = {}
    for what, text in NOISE.items():
        for gold in ("18", "(1,2)"):
            seconds = []
            for _ in range(5):
                start = time.thread_time()
                assert not equal(gold, text, mode(name)), what
                seconds.append(time.thread_time() - start)
                if seconds[-1] < LIMIT:
                    break
            if min(seconds) >= LIMIT:
                slow[what, gold] = min(seconds)
    assert slow == {}


def test_cost_grows_with_the_length_only() -> None:
    def seconds(text: str) -> float:
        found = []
        for _ in range(7):
            start = time.thread_time()
            equal("18", text, "any")
            found.append(time.thread_time() - start)
        return min(found)

    for part in ("1234567890", "\\boxed{", "#### 1 ", "<answer>", "{"):
        assert seconds(filled(part) * 8) < 32 * max(seconds(filled(part)), 2e-4), part


@pytest.mark.parametrize(
    "bomb",
    [
        "9^{9^{9}}",
        "9^9^9",
        "3^{3^{3^{3}}}",
        "9^{\\frac{9^9}{1}}",
        "18!!",
        "(10^9)!",
        "99999999!",
        "\\binom{10^9}{10^8}",
        "(2^{9999})^{9999}",
        "\\sum_{k=1}^{10^9}k",
        "\\int \\sin(x^x) dx",
        "\\frac{1}{" * 15 + "2" + "}" * 15,
        "(x+1)^{1000}",
    ],
)
def test_no_mathematics_is_unscored_for_its_cost(bomb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An expression that sympy would never finish is wrong, within the limit of its processor time."""
    monkeypatch.setattr(symbolic, "SECONDS", 0.5)
    start = time.thread_time()
    assert not equal("x^2+1", f"\\boxed{{{bomb}}}")
    assert time.thread_time() - start < 2 * symbolic.SECONDS


def test_powers_that_can_be_written_out_are_compared() -> None:
    for gold, given in (
        ("2^{2005}", "2 \\cdot 2^{2004}"),
        ("e^{x^2}", "\\exp(x^2)"),
        ("256", "2^{2^3}"),
        ("120", "5!"),
    ):
        assert equal(gold, f"\\boxed{{{given}}}"), gold


def test_plain_numbers_need_no_sympy() -> None:
    numbers = [str(n * 37 % 9973) for n in range(2000)]
    texts = [f"so 9 * 2 = {n}\n#### {n} dollars" if k % 2 else f"so \\boxed{{{n}}}" for k, n in enumerate(numbers)]
    best = 0.0
    for _ in range(3):
        start = time.thread_time()
        assert all(equal(n, text) for n, text in zip(numbers, texts, strict=True))
        assert not any(equal(n + "1", text) for n, text in zip(numbers, texts, strict=True))
        best = max(best, 2 * len(numbers) / (time.thread_time() - start))
    assert best > 5000, "answers per second and core"


@pytest.mark.usefixtures("no_process_left")
def test_the_mode_is_a_parameter_of_the_task(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"question": "q", "answer": "18"}\n')
    prose = "There are 9 eggs at 2 dollars each.\nShe makes 9 * 2 = 18 dollars every day."
    values = {}
    for name in ({}, {"verify": "boxed"}, {"verify": "any"}):
        task = tasks.get({"name": f"jsonl:{path}", "eval_path": str(path), **name})
        with Scorer(task) as scorer:
            scores = scorer.score([task.example("eval", 0)] * 2, [prose, "\\boxed{18}"])
        values[name.get("verify")] = [score.value for score in scores]
    assert values == {None: [0.0, 1.0], "boxed": [0.0, 1.0], "any": [1.0, 1.0]}
    with pytest.raises(ValueError, match=r"verify = 'some'"):
        tasks.get({"name": f"jsonl:{path}", "verify": "some"})


def test_an_unreadable_reference_is_named() -> None:
    with pytest.raises(ValueError, match="correct that row"):
        equal("", "\\boxed{x+1}")


def test_what_sympy_cannot_handle_is_wrong_not_unscored() -> None:
    choices = random.Random(3)
    parts = [
        "1",
        "x",
        "+",
        "-",
        "*",
        "/",
        "^",
        "(",
        ")",
        "{",
        "}",
        "\\frac",
        "\\sqrt",
        ",",
        "=",
        "\\pm",
        "\\infty",
        "!",
    ]
    parts += ["\\cup", "[", "]", "\\{", "\\}", "|", "_", ".", "<", "\\in", "\\log", "\\binom", "\\begin{pmatrix}", "&"]
    for _ in range(400):
        text = " ".join(choices.choices(parts, k=choices.randrange(1, 9)))
        for gold in ("18", "(1,2)", "x>5", "\\frac{\\pi}{2}"):
            assert equal(gold, f"\\boxed{{{text}}}") in (True, False)


def test_final_answers() -> None:
    def parts(text: str, name: Mode = "boxed") -> tuple[str, ...] | None:
        stated = final_answer(text, name)
        return None if stated is None else stated.parts

    assert parts("\\boxed{\\frac{1}{2}} or so") == ("\\frac{1}{2}",)
    assert parts("\\boxed{2} and \\boxed{3}") == ("2", "3")
    assert parts("<think>\\boxed{2}") is None
    assert parts("nothing here\nat all") is None
    assert parts("it is 5 dollars\nin total, so 7", "any") == ("7",)
