"""Tasks with long answers of which many are right: any path to the goal counts."""

import random
import string
from collections import deque
from typing import ClassVar

from pydantic import Field, model_validator

from fspo.tasks.procedural import FreeForm, whole_number
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
            number = whole_number(text, goal)
            reached = None if number is None else goal - number if self.down else number
            if reached is None or not total < reached <= total + self.stride:
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
            wrong = cell is None or cell in walls or max(cell) >= self.side or _distance(cell, here) != (k > 0)
            if wrong or cell is None:
                break
            here = cell
        done = max(0, distance - sum(here))
        return (min(done, distance - 1) if wrong else done) / distance


def _distances(cells: set[Cell]) -> dict[Cell, int]:
    """Steps to the goal from those of the cells that can reach it."""
    found, waiting = {GOAL: 0}, deque([GOAL])
    while waiting:
        here = waiting.popleft()
        for cell in _around(here):
            if cell in cells and cell not in found:
                found[cell] = found[here] + 1
                waiting.append(cell)
    return found


def _around(cell: Cell) -> list[Cell]:
    x, y = cell
    return [(x - 1, y), (x + 1, y), (x, y - 1), (x, y + 1)]


def _distance(a: Cell, b: Cell) -> int:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def _name(cell: Cell) -> str:
    return string.ascii_lowercase[cell[0]] + string.ascii_lowercase[cell[1]]


def _cell(name: str) -> Cell | None:
    if len(name) != 2 or not all("a" <= letter <= "z" for letter in name):
        return None
    return ord(name[0]) - ord("a"), ord(name[1]) - ord("a")


PATHS: tuple[type[FreeForm], ...] = (Walk, Maze)
