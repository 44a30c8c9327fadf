"""The verifier: the hostile corpus, public references in several spellings, and what any answer may cost."""

import json
import random
import runpy
import signal
from pathlib import Path

import pytest

from fspo.tasks import verify
from fspo.tasks.verify import equal, final_answer, reference

CORPUS = Path(__file__).resolve().parents[1] / "hostile" / "answers.jsonl"
BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "verifier.py"
LENGTH = 256_000


@pytest.fixture
def slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdicts do not depend on the speed of the machine."""
    monkeypatch.setattr(verify, "SECONDS", 100)


@pytest.mark.usefixtures("slow_machine")
def test_hostile_answers() -> None:
    """A row per mechanism: taking away a rule, or an alternative of one, turns at least one verdict."""
    rows = [json.loads(line) for line in CORPUS.read_text("utf-8").splitlines()]
    assert [row for row in rows if equal(row["reference"], row["answer"]) is not row["right"]] == []


@pytest.mark.usefixtures("slow_machine")
def test_every_math_answer_equals_itself_in_several_spellings_and_no_other(shared: Path) -> None:
    answers = [json.loads(line)["answer"] for line in (shared / "math500.jsonl").read_text().splitlines()]
    renderings = runpy.run_path(str(BENCHMARK))["RENDERINGS"]
    cases = [(answer, rendering % answer) for answer in answers for rendering in renderings]
    assert len(cases) == 4000
    assert [case for case in cases if not equal(*case)] == []
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


def filled(part: str) -> str:
    return (part * (LENGTH // len(part) + 1))[:LENGTH]


REPEATED = (
    "1234567890", "7 ", "1,", "{", "}", "{}", "\\", "\\\\{", "(", "[(", "=", "1=", "\\boxed{", "\\boxed{5", "\\boxed",
    "\\boxed  ", "\\fbox{", "####", "#### 1", "<answer>", "</answer>", "<think>", "</think>", "answer is ", "Answer:",
    "$", "$1", "√½−π²", "\u2009", "😀", "\n", " ", "\\[ 1 ", "\\] ", "\\frac{1}{", "maybe 5 or 7 ",
)  # fmt: skip
NOISE = {
    **{part: filled(part) for part in REPEATED},
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


def test_no_long_answer_is_costly() -> None:
    """In quadratic time these texts together would take longer than a test may; in linear time, milliseconds each."""
    for what, text in NOISE.items():
        for gold in ("18", "(1,2)"):
            assert not equal(gold, text), what


@pytest.mark.parametrize(
    "bomb",
    [
        "9^{9^{9}}",
        "9^9^9",
        "3^{3^{3^{3}}}",
        "9^{\\frac{9^9}{1}}",
        "9^\\frac{9999999999}{1}",
        "9^(9999999999)",
        "9^-9999999999",
        "18!!",
        "(10^9)!",
        "99999999!",
        "\\binom{10^9}{10^8}",
        "(2^{9999})^{9999}",
        "\\sum_{k=1}^{10^9}k",
        "\\int \\sin(x^x) dx",
        "\\frac{1}{" * 17 + "2" + "}" * 17,
    ],
)
def test_what_sympy_would_not_finish_is_not_parsed(bomb: str) -> None:
    assert not verify._readable(bomb)
    assert not equal("x^2+1", f"\\boxed{{{bomb}}}")


def test_an_answer_has_one_budget_of_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list or a chain of expressions that each take long starts one timer, and what does not end is wrong."""
    started = []
    timer = signal.setitimer

    def counted(which: int, seconds: float, interval: float = 0.0) -> tuple[float, float]:
        started.append((which, seconds)) if seconds else None
        return timer(which, seconds, interval)

    def endless(*_: object, **__: object) -> bool:
        while True:
            pass

    monkeypatch.setattr(signal, "setitimer", counted)
    monkeypatch.setattr(verify, "SECONDS", 0.2)
    monkeypatch.setattr(verify, "_parsed", lambda text: [text])  # which would keep what it reads for the tests after
    monkeypatch.setattr(verify, "_math_verify", lambda: (None, endless))
    listed = ", ".join(f"(x+{k})^{{1000}}" for k in range(12))
    assert not equal(listed, f"\\boxed{{{listed.replace('x', 'y')}}}")
    assert not equal("x = 5 + y", "\\boxed{x = y + 5 = 5 + z = 5 + y - 0}")
    assert started == [(signal.ITIMER_PROF, 0.2)] * 2
    assert signal.getsignal(signal.SIGPROF) == signal.SIG_DFL


def test_plain_numbers_need_no_sympy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(verify, "_math_verify")
    for k in range(200):
        number = str(k * 37 % 9973)
        for text in (f"so 9 * 2 = {number}\n#### {number} dollars", f"so \\boxed{{{number}}}"):
            assert equal(number, text)
            assert not equal(number + "1", text)


@pytest.mark.usefixtures("slow_machine")
def test_an_unreadable_reference_is_named() -> None:
    with pytest.raises(ValueError, match="correct that row"):
        equal("", "\\boxed{x+1}")


def test_what_sympy_cannot_handle_is_wrong_not_unscored() -> None:
    choices = random.Random(3)
    signs = "1x+-*/^(){},=![]|_.<&"
    commands = ("\\frac", "\\sqrt", "\\pm", "\\infty", "\\cup", "\\{", "\\}", "\\in", "\\log", "\\binom")
    parts = [*signs, *commands, "\\begin{pmatrix}"]
    for _ in range(400):
        text = " ".join(choices.choices(parts, k=choices.randrange(1, 9)))
        for gold in ("18", "(1,2)", "x>5", "\\frac{\\pi}{2}"):
            equal(gold, f"\\boxed{{{text}}}")  # an exception fails


def test_final_answers() -> None:
    assert final_answer("\\boxed{\\frac{1}{2}} or so") == "\\frac{1}{2}"
    assert final_answer("\\boxed{2} and \\boxed{3}") == "2, 3"
    assert final_answer("<think>\\boxed{2}") is None
    assert final_answer("nothing here\nat all") is None
    assert final_answer("She makes 9 * 2 = 18 dollars.") is None
