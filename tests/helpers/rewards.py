"""Rewards that fail in different ways; the completion is the name of the function to call."""

import ctypes
import os
import signal
import sys
import time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import NoReturn

import psutil

from fspo.tasks import verify
from fspo.tasks.rows import Custom, Jsonl
from fspo.tasks.task import Example


class Patient(Jsonl):
    """Question-answer rows whose verdicts do not depend on the speed of the machine, in scoring processes too."""

    def prepare(self) -> None:
        verify.SECONDS = 100
        super().prepare()


class Timed(Custom):
    """A reward in Python whose rows hold the time limit of their answers in seconds."""

    def longest(self, example: Example) -> float:
        return float(example.answer)


def reward(prompt: str, completion: str, answer: object) -> object:
    return globals()[completion]()


def echo(prompt: str, completion: str, answer: float) -> float:
    assert prompt.startswith("p")
    return float(completion) / answer


def good() -> float:
    return 1.0


def interrupt_the_trainer() -> NoReturn:
    """As Ctrl-C does, while this answer is being scored."""
    os.kill(psutil.Process(os.getppid()).ppid(), signal.SIGINT)
    while True:
        time.sleep(1000)


def loop() -> NoReturn:
    while True:
        pass


def allocate() -> NoReturn:
    kept = []
    while True:
        kept.append(bytearray(10**7))


def fail() -> NoReturn:
    raise RuntimeError("no reward today")


def leave() -> NoReturn:
    sys.exit(0)


def vanish() -> NoReturn:
    os._exit(0)


def segfault() -> None:
    ctypes.string_at(0)


def binary() -> float:
    os.write(1, bytes(range(256)) * 1000)
    os.write(2, b"\xff\x1b]0;")
    sys.stdout.buffer.write(b"\x00\xff" * 100)
    sys.stdout.flush()
    return 0.5


def fork_and_sleep() -> float:
    if os.fork() == 0:
        time.sleep(1000)
    return 0.25


def fork_and_return() -> float:
    os.fork()
    return 0.25


def fork_and_vanish() -> NoReturn:
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(1)


def fork_and_loop() -> NoReturn:
    if os.fork() == 0:
        time.sleep(1000)
    loop()


def kill_the_server() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(1000)


def tell_pid_and_loop() -> NoReturn:
    Path(os.environ["FSPO_TEST_PIDS"]).write_text(f"{os.getpid()} {os.getppid()}")
    loop()


def typed(prompt: str, completion: str, answer: object) -> object:
    """A reward of the type that the completion names."""
    import numpy as np

    return {
        "bool": True, "np.bool_": np.bool_(True), "np.int64": np.int64(1), "np.float32": np.float32(1),
        "np.float16": np.float16(1), "array": np.array(1.0), "bool array": np.array(True),
        "Fraction": Fraction(1), "Decimal": Decimal(1), "np.nan": np.float64("nan"), "Decimal NaN": Decimal("NaN"),
        "np.inf": np.float32("inf"), "past float32": -1e39, "nan array": np.array(float("nan")),
        "vector": np.ones(1), "str": "1.0",
        "np.str_": np.str_("1.0"), "complex": 1j, "list": [1.0], "huge": 10**400, "text array": np.array("1.0"),
    }[completion]  # fmt: skip
