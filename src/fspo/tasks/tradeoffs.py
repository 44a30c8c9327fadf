"""Tasks whose best policy is known and depends on how answers of different lengths are weighed."""

import itertools
import random
import string
from typing import ClassVar

from pydantic import Field, model_validator

from fspo.tasks.procedural import Drawn, FreeForm
from fspo.tasks.task import Example


class Choice(Drawn):
    """A sum modulo `base`, at once or with working; which pays depends on the number of digits.

    A letter before each digit names its place. An answer with working reads the digits in pieces of any size and
    writes the sum so far after each. Up to `easy` digits a right answer earns 1 at once, and 1 - price with working.
    Above, every right answer earns 1, and answers at once are mostly guesses. The best policy shows working exactly
    for questions above `easy`.
    """

    name: ClassVar[str] = "choice"
    summary: ClassVar[str] = "a sum modulo 3, at once or with working: sum:a1b2c1= -> 1 or a1b2>0,c1>1"

    n_min: int = Field(2, ge=2, description="Fewest digits.")
    n_max: int = Field(26, ge=2, description="Most digits.")
    base: int = Field(3, ge=2, le=10, description="Digits are below this, and so is the sum.")
    easy: int = Field(3, ge=1, description="Most digits of a question for which working does not pay.")
    price: float = Field(0.5, gt=0, le=1, description="What working costs of the reward of an easy question.")
    worked: float = Field(0.3, ge=0, le=1, description="Share of the solutions that show working.")
    piece: int = Field(2, ge=1, description="Most digits read at once in a solution.")

    def problem(self, rng: random.Random, n: int) -> tuple[str, str]:
        digits = rng.choices(range(self.base), k=n)
        named = [
            f"{letter}{digit}" for letter, digit in zip(itertools.cycle(string.ascii_lowercase), digits, strict=False)
        ]
        prompt = f"sum:{''.join(named)}="
        if rng.random() >= self.worked:
            return prompt, str(sum(digits) % self.base)
        steps, total, done = [], 0, 0
        while done < n:
            k = rng.randint(1, min(self.piece, n - done))
            total = (total + sum(digits[done : done + k])) % self.base
            steps.append(f"{''.join(named[done : done + k])}>{total}")
            done += k
        return prompt, ",".join(steps)

    def credit(self, example: Example, completion: str) -> float:
        named = example.prompt[4:-1]
        if completion == str(sum(map(int, named[1::2])) % self.base):
            return 1.0
        if not self._follows(named, completion):
            return 0.0
        return 1.0 - self.price if len(named) <= 2 * self.easy else 1.0

    def _follows(self, named: str, completion: str) -> bool:
        """Whether an answer with working is right in every step."""
        total = done = 0
        for step in completion.split(","):
            piece, arrow, result = step.partition(">")
            if not arrow or not piece or len(piece) % 2 or named[done : done + len(piece)] != piece:
                return False
            done += len(piece)
            total = (total + sum(map(int, piece[1::2]))) % self.base
            if result != str(total):
                return False
        return done == len(named)

    def features(self, example: Example, completion: str) -> dict[str, float]:
        shown = float(">" in completion)
        kind = "easy" if len(example.prompt) - 5 <= 2 * self.easy else "hard"
        return {"worked": shown, f"worked, {kind}": shown}

    def optimum(self) -> dict[str, float]:
        return {"worked": self.larger(self.easy), "worked, easy": 0.0, "worked, hard": 1.0}


class Conflict(Drawn):
    """Short and long questions that want opposite letters, which are written before the kind of question is known.

    An answer begins with `letters` letters a or b. Then it follows the parity of the prompt's bits, bit by bit. If the
    last parity is 0 the question is a short one, and the answer ends; if it is 1 the answer counts down from n to 1
    with a letter of its own choice after each number. With x the share of a among the first letters, a right short
    answer earns 1 - (1 - x)^2 and a right long one 1 - x^2. A share w of the questions is short, so that the mean
    reward is greatest at x = w. Where long answers have the weight f relative to short ones, it is greatest at
    w / (w + (1 - w) f): x after training shows the weight that a method gives to long answers.
    """

    name: ClassVar[str] = "conflict"
    summary: ClassVar[str] = "short and long questions want opposite letters: mix:2,011= -> ab:0102x1q"

    n_min: int = Field(4, ge=1, description="Smallest count of a long question.")
    n_max: int = Field(100, ge=1, description="Largest count of a long question.")
    letters: int = Field(8, ge=1, le=100, description="Letters a or b at the start of an answer.")
    bits: int = Field(8, ge=1, le=100, description="Bits of a prompt.")
    short: float = Field(0.3, gt=0, lt=1, description="Share of the questions that are short.")
    start: float = Field(0.5, ge=0, le=1, description="Share of a in the solutions.")

    @model_validator(mode="after")
    def _hidden(self) -> "Conflict":
        if self.bits < 2:
            raise ValueError(f"bits {self.bits} would show the kind of a question in the prompt: set at least 2")
        return self

    def problem(self, rng: random.Random, n: int) -> tuple[str, str]:
        long = rng.random() >= self.short
        bits = [rng.randrange(2) for _ in range(self.bits - 1)]
        bits.append((sum(bits) + long) % 2)
        chosen = "".join("a" if rng.random() < self.start else "b" for _ in range(self.letters))
        counted = "".join(f"{k}{rng.choice(string.ascii_lowercase)}" for k in range(n, 0, -1)) if long else ""
        return f"mix:{n},{''.join(map(str, bits))}=", f"{chosen}:{_parities(bits)}{counted}"

    def difficulty(self, prompt: str, n: int) -> float:
        """0 for a short question, and above 0 for a long one."""
        return (1 + super().difficulty(prompt, n)) / 2 if _bits(prompt)[-1] else 0.0

    def credit(self, example: Example, completion: str) -> float:
        long, x = bool(_bits(example.prompt)[-1]), self._share(completion)
        if x is None or not self._follows(example.prompt, completion[self.letters + 1 :]):
            return 0.0
        return 1 - x * x if long else 1 - (1 - x) * (1 - x)

    def _share(self, completion: str) -> float | None:
        """The share of a; None where the answer does not begin as it must."""
        chosen = completion[: self.letters]
        if completion[self.letters : self.letters + 1] != ":" or chosen.strip("ab"):
            return None
        return chosen.count("a") / self.letters

    def _follows(self, prompt: str, rest: str) -> bool:
        """Whether what comes after the letters is right."""
        parities = _bits(prompt)
        if rest[: self.bits] != "".join(map(str, parities)):
            return False
        place, n = self.bits, int(prompt[4:].partition(",")[0])
        for number in range(n, 0, -1) if parities[-1] else ():
            digits = len(str(number))
            letter = rest[place + digits : place + digits + 1]
            if rest[place : place + digits] != str(number) or not letter or letter not in string.ascii_lowercase:
                return False
            place += digits + 1
        return place == len(rest)

    def features(self, example: Example, completion: str) -> dict[str, float]:
        x = self._share(completion)
        return {} if x is None else {"share of a": x}

    def optimum(self) -> dict[str, float]:
        return {"share of a": self.short}


def _parities(bits: list[int]) -> str:
    return "".join(str(total % 2) for total in itertools.accumulate(bits))


def _bits(prompt: str) -> list[int]:
    """The parity of the bits of a prompt up to each of them."""
    bits = map(int, prompt.partition(",")[2][:-1])
    return [total % 2 for total in itertools.accumulate(bits)]


TRADEOFFS: tuple[type[FreeForm], ...] = (Choice, Conflict)
