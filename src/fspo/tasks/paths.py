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


class Maze(FreeForm):
    """The size is the distance without walls. A cell is named by the letters of its column and its row."""

    name: ClassVar[str] = "maze"
    summary: ClassVar[str] = "any way from cell to cell around walls: maze:aa>bc|ba= -> aa ab bb bc"

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
        start, goal = self._ends(rng, n)
        walls = self._walls(rng, start, goal)
        left = self._distances(goal, walls)
        while start not in left:
            walls = self._walls(rng, start, goal)
            left = self._distances(goal, walls)
        path = [start]
        while path[-1] != goal:
            free = [cell for cell in _around(path[-1]) if cell in left]
            nearer = [cell for cell in free if left[cell] < left[path[-1]]]
            path.append(rng.choice(free if rng.random() < self.detour else nearer))
        listed = " ".join(map(_name, sorted(walls)))
        return f"maze:{_name(start)}>{_name(goal)}|{listed}=", " ".join(map(_name, path))

    def _ends(self, rng: random.Random, n: int) -> tuple[Cell, Cell]:
        last = self.side - 1
        across = rng.randint(max(0, n - last), min(n, last))
        ends = []
        for distance in (across, n - across):
            low = rng.randint(0, last - distance)
            ends.append((low, low + distance) if rng.random() < 0.5 else (low + distance, low))
        (x0, x1), (y0, y1) = ends
        return (x0, y0), (x1, y1)

    def _walls(self, rng: random.Random, start: Cell, goal: Cell) -> set[Cell]:
        """Random cells in and around the rectangle between the ends, at most a quarter of it."""
        spans = [range(max(0, min(a, b) - 1), min(self.side, max(a, b) + 2)) for a, b in zip(start, goal, strict=True)]
        cells = [cell for x in spans[0] for y in spans[1] if (cell := (x, y)) not in (start, goal)]
        return set(rng.sample(cells, min(self.walls, len(cells) // 4)))

    def _distances(self, goal: Cell, walls: set[Cell]) -> dict[Cell, int]:
        """Steps to the goal from every cell that can reach it."""
        found, waiting = {goal: 0}, deque([goal])
        while waiting:
            here = waiting.popleft()
            for cell in _around(here):
                if cell not in found and cell not in walls and all(0 <= c < self.side for c in cell):
                    found[cell] = found[here] + 1
                    waiting.append(cell)
        return found

    def credit(self, example: Example, completion: str) -> float:
        """How much nearer the goal the answer comes before its first wrong cell, walls left aside."""
        ends, _, listed = example.prompt[5:-1].partition("|")
        start, goal = map(_cell, ends.split(">"))
        assert start is not None
        assert goal is not None
        walls = set(map(_cell, listed.split()))
        distance, here, wrong = _distance(start, goal), start, False
        for k, name in enumerate(completion.split(" ")):
            cell = _cell(name)
            wrong = cell is None or cell in walls or max(cell) >= self.side or _distance(cell, here) != (k > 0)
            if wrong or cell is None:
                break
            here = cell
        done = max(0, distance - _distance(here, goal))
        return (min(done, distance - 1) if wrong else done) / distance


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
