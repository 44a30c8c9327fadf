"""Tasks with many right answers: paths to a goal, and trade-offs in which the best answer is known."""

import itertools
import random
import re
import string
from collections import deque
from typing import ClassVar

from pydantic import Field, model_validator

from fspo.tasks.procedural import Drawn, FreeForm
from fspo.tasks.task import Example


class Walk(FreeForm):
    """The size is the number to reach. An answer has one number per step: about 0.8 characters per unit of n."""

    name: ClassVar[str] = "walk"
    summary: ClassVar[str] = "reach a number from 0 by any steps of 1 to 9: walk:21= -> 4,13,15,21"
    solved_at_start: ClassVar[float] = 0.5  # at a quarter only the shortest are solved

    n_min: int = Field(6, ge=1, description="Smallest number to reach.")
    n_max: int = Field(400, ge=1, description="Largest number to reach.")
    stride: int = Field(9, ge=1, description="Largest step.")
    down: bool = Field(
        False, description="Write what is left, from n down to 0, instead of the totals: small models learn it faster."
    )

    def problem(self, rng: random.Random, n: int) -> tuple[str, str]:
        totals = [0]
        while totals[-1] < n:
            totals.append(totals[-1] + rng.randint(1, min(self.stride, n - totals[-1])))
        return f"walk:{n}=", ",".join(str(n - total if self.down else total) for total in totals[1:])

    def credit(self, example: Example, completion: str) -> float:
        """How far the answer comes before its first wrong total."""
        goal, total = int(example.prompt[5:-1]), 0
        for text in completion.split(","):
            # Only the shortest way to write a number counts, and a long text is never read as one.
            number = int(text) if re.fullmatch("0|[1-9][0-9]{0,9}", text) else -1
            reached = goal - number if self.down else number
            if number < 0 or not total < reached <= min(goal, total + self.stride):
                return min(total, goal - 1) / goal
            total = reached
        return total / goal


Cell = tuple[int, int]
GOAL: Cell = (0, 0)


class Maze(FreeForm):
    """A way to the corner aa. A cell is named by the letters of its column and its row; the size is the distance."""

    name: ClassVar[str] = "maze"
    summary: ClassVar[str] = "any way around walls to the corner aa: maze:bc|ab= -> bc bb ba aa"

    n_min: int = Field(2, ge=1, description="Smallest distance.")
    n_max: int = Field(40, ge=1, description="Largest distance.")
    side: int = Field(26, ge=2, le=26, description="Columns and rows of the grid.")
    walls: int = Field(6, ge=0, le=100, description="Most cells that may not be entered.")
    detour: float = Field(0.3, ge=0, le=0.9, description="Share of the steps of a solution in a random direction.")

    @model_validator(mode="after")
    def _inside(self) -> "Maze":
        if self.n_max > 2 * self.side - 2:
            raise ValueError(f"n_max {self.n_max} is above {2 * self.side - 2}, the way across the grid: lower it")
        return self

    def problem(self, rng: random.Random, n: int) -> tuple[str, str]:
        column = rng.randint(max(0, n - self.side + 1), min(n, self.side - 1))
        start, left = (column, n - column), dict[Cell, int]()
        cells = {(x, y) for x in range(min(self.side, column + 2)) for y in range(min(self.side, n - column + 2))}
        between = sorted(cells - {start, GOAL})
        while start not in left:
            walls = set(rng.sample(between, min(self.walls, len(between) // 4)))
            left = _distances(cells - walls)
        path = [start]
        while path[-1] != GOAL:
            free = [cell for cell in _around(path[-1]) if cell in left]
            nearer = [cell for cell in free if left[cell] < left[path[-1]]]
            path.append(rng.choice(free if rng.random() < self.detour else nearer))
        listed = " ".join(map(_name, sorted(walls)))
        return f"maze:{_name(start)}|{listed}=", " ".join(map(_name, path))

    def credit(self, example: Example, completion: str) -> float:
        """How much nearer the goal the answer comes before its first wrong cell, walls left aside."""
        name, _, listed = example.prompt[5:-1].partition("|")
        start, walls = _cell(name), set(map(_cell, listed.split()))
        assert start is not None
        distance, here, wrong = sum(start), start, False
        for k, name in enumerate(completion.split(" ")):
            cell = _cell(name)
            wrong = cell in walls or cell not in (_around(here) if k else [start]) or max(cell) >= self.side
            if wrong or cell is None:
                break
            here = cell
        done = max(0, distance - sum(here))
        return (min(done, distance - 1) if wrong else done) / distance


def _distances(cells: set[Cell]) -> dict[Cell, int]:
    """Steps to the goal from those of the cells that can reach it."""
    steps, waiting = {GOAL: 0}, deque([GOAL])
    while waiting:
        here = waiting.popleft()
        for cell in _around(here):
            if cell in cells and cell not in steps:
                steps[cell] = steps[here] + 1
                waiting.append(cell)
    return steps


def _around(cell: Cell) -> list[Cell]:
    x, y = cell
    return [(x - 1, y), (x + 1, y), (x, y - 1), (x, y + 1)]


def _name(cell: Cell) -> str:
    return string.ascii_lowercase[cell[0]] + string.ascii_lowercase[cell[1]]


def _cell(name: str) -> Cell | None:
    if len(name) != 2 or not all("a" <= letter <= "z" for letter in name):
        return None
    return ord(name[0]) - ord("a"), ord(name[1]) - ord("a")


class Choice(Drawn):
    """A sum modulo `base`, at once or with working; which pays depends on the number of digits.

    A letter before each digit names its place. An answer with working reads the digits in pieces of any size and
    writes the sum so far after each. Up to `easy` digits a right answer earns 1 at once, and 1 - price with working;
    above, every right answer earns 1, so that the best policy shows working exactly there.
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
    answer earns 1 - (1 - x)^2 and a right long one 1 - x^2. With a share w of short questions the mean reward is
    greatest at x = w, and at w / (w + (1 - w) f) where long answers have the weight f: x shows a method's f.
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
        prompt = f"mix:{n},{''.join(map(str, bits))}="
        return prompt, f"{chosen}:{''.join(map(str, _parities(prompt)))}{counted}"

    def difficulty(self, prompt: str, n: int) -> float:
        """0 for a short question, and above 0 for a long one."""
        return (1 + super().difficulty(prompt, n)) / 2 if _parities(prompt)[-1] else 0.0

    def credit(self, example: Example, completion: str) -> float:
        long, x = bool(_parities(example.prompt)[-1]), self._share(completion)
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
        parities = _parities(prompt)
        if rest[: self.bits] != "".join(map(str, parities)):
            return False
        position, n = self.bits, int(prompt[4:].partition(",")[0])
        for number in range(n, 0, -1) if parities[-1] else ():
            digits = len(str(number))
            letter = rest[position + digits : position + digits + 1]
            if rest[position : position + digits] != str(number) or not letter or letter not in string.ascii_lowercase:
                return False
            position += digits + 1
        return position == len(rest)

    def features(self, example: Example, completion: str) -> dict[str, float]:
        x = self._share(completion)
        return {} if x is None else {"share of a": x}

    def optimum(self) -> dict[str, float]:
        return {"share of a": self.short}


def _parities(prompt: str) -> list[int]:
    """The parity of the bits of a prompt up to each of them."""
    bits = map(int, prompt.partition(",")[2][:-1])
    return [total % 2 for total in itertools.accumulate(bits)]


FREE_FORM: tuple[type[FreeForm], ...] = (Walk, Maze, Choice, Conflict)
