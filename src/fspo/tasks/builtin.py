"""Built-in tasks for small character-level models.

The default sizes are those that `fspo train task=NAME` can begin with: the default model learns a share of them in some
hundred steps of supervised warm-up. Larger ones, such as additions of 20 digits, need a larger model or a longer start.
"""

import random
import string
from collections import Counter
from typing import ClassVar

from pydantic import Field

from fspo.tasks.procedural import Procedural


class Sort(Procedural):
    """The answer has exactly as many letters as the problem."""

    name: ClassVar[str] = "sort"
    summary: ClassVar[str] = "sort a multiset of letters: sort:dbca= -> abcd"

    n_min: int = Field(4, ge=1, description="Fewest letters.")
    n_max: int = Field(40, ge=1, description="Most letters.")
    letters: int = Field(26, ge=2, le=26, description="How many different letters occur.")

    def problem(self, rng: random.Random, n: int) -> tuple[str, str]:
        word = "".join(rng.choices(string.ascii_lowercase[: self.letters], k=n))
        return f"sort:{word}=", "".join(sorted(word))


class Add(Procedural):
    """Numbers have the lowest digit first, so that each digit of the answer depends only on earlier ones."""

    name: ClassVar[str] = "add"
    summary: ClassVar[str] = "add numbers written lowest digit first: add:71+52= -> 24 (17 + 25 = 42)"

    n_min: int = Field(1, ge=1, description="Fewest digits.")
    n_max: int = Field(3, ge=1, description="Most digits.")

    def problem(self, rng: random.Random, n: int) -> tuple[str, str]:
        low = 10 ** (n - 1) if n > 1 else 0
        a, b = rng.randrange(low, 10**n), rng.randrange(low, 10**n)
        return f"add:{str(a)[::-1]}+{str(b)[::-1]}=", str(a + b)[::-1]


class Brackets(Procedural):
    """The size is the number of brackets left open; pairs that are already closed must be ignored."""

    name: ClassVar[str] = "brackets"
    summary: ClassVar[str] = "close the open brackets: close:([]{= -> })"

    n_min: int = Field(2, ge=1, description="Fewest open brackets.")
    n_max: int = Field(40, ge=1, description="Most open brackets.")

    def problem(self, rng: random.Random, n: int) -> tuple[str, str]:
        closing = {"(": ")", "[": "]", "{": "}"}
        prefix: list[str] = []
        stack: list[str] = []
        closed = 0
        while len(stack) < n:
            if stack and closed < n and rng.random() < 0.25:
                prefix.append(closing[stack.pop()])
                closed += 1
            else:
                stack.append(rng.choice("([{"))
                prefix.append(stack[-1])
        return f"close:{''.join(prefix)}=", "".join(closing[c] for c in reversed(stack))


class Count(Procedural):
    """The whole chain is checked, so that guessing the last numbers earns no reward."""

    name: ClassVar[str] = "count"
    summary: ClassVar[str] = "count with a worked chain: count:abaca= -> a1b1a2c1a3=a3b1c1"

    n_min: int = Field(2, ge=1, description="Fewest letters.")
    n_max: int = Field(32, ge=1, description="Most letters.")
    letters: int = Field(6, ge=2, le=26, description="How many different letters occur.")

    def problem(self, rng: random.Random, n: int) -> tuple[str, str]:
        word = "".join(rng.choices(string.ascii_lowercase[: self.letters], k=n))
        counts: Counter[str] = Counter()
        chain = []
        for letter in word:
            counts[letter] += 1
            chain.append(f"{letter}{counts[letter]}")
        total = "".join(f"{letter}{counts[letter]}" for letter in sorted(counts))
        return f"count:{word}=", f"{''.join(chain)}={total}"


class Stack(Procedural):
    """The size is the number of operands; the stack after every instruction is the worked chain."""

    name: ClassVar[str] = "stack"
    summary: ClassVar[str] = "trace a stack machine modulo 10: stack:35+4*= -> 3;35;8;84;2"

    n_min: int = Field(2, ge=2, description="Fewest operands.")
    n_max: int = Field(5, ge=2, description="Most operands.")
    depth: int = Field(4, ge=2, le=9, description="Most operands on the stack at once.")

    def problem(self, rng: random.Random, n: int) -> tuple[str, str]:
        program: list[str] = []
        states: list[str] = []
        stack: list[int] = []
        pushed = 0
        while pushed < n or len(stack) > 1:
            may_push = pushed < n and len(stack) < self.depth
            if may_push and (len(stack) < 2 or rng.random() < 0.5):
                stack.append(rng.randrange(10))
                pushed += 1
                program.append(str(stack[-1]))
            else:
                op = rng.choice("+-*")
                b, a = stack.pop(), stack.pop()
                stack.append({"+": a + b, "-": a - b, "*": a * b}[op] % 10)
                program.append(op)
            states.append("".join(map(str, stack)))
        return f"stack:{''.join(program)}=", ";".join(states)


BUILTIN: tuple[type[Procedural], ...] = (Sort, Add, Brackets, Count, Stack)
