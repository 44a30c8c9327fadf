"""Rewards that behave badly, each in one way; the completion names which one."""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path


def reward(prompt, completion, answer):
    return globals()[completion]()


def echo(prompt, completion, answer):
    assert prompt.startswith("p")
    return float(completion) / float(answer)


def good():
    return 1.0


def integer():
    return 1


def loop():
    while True:
        pass


def loop_in_c():
    return float(len(str(9 ** (9**9))))


def allocate():
    kept = []
    while True:
        kept.append(bytearray(10**7))


def fail():
    raise RuntimeError("no reward today")


def leave():
    sys.exit(0)


def vanish():
    os._exit(0)


def segfault():
    ctypes.string_at(0)


def binary():
    os.write(1, bytes(range(256)) * 1000)
    os.write(2, b"\xff\x1b]0;")
    sys.stdout.buffer.write(b"\x00\xff" * 100)
    sys.stdout.flush()
    return 0.5


def fork_and_sleep():
    if os.fork() == 0:
        time.sleep(1000)
    return 0.25


def fork_and_return():
    os.fork()
    return 0.25


def daemonise():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(0)
    return 0.25


def fork_and_vanish():
    if os.fork() == 0:
        os.setsid()
        time.sleep(1000)
    os._exit(1)


def fork_and_loop():
    if os.fork() == 0:
        os.setsid()
        time.sleep(1000)
    loop()


def kill_the_nursery():
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(1000)


def not_a_number():
    return float("nan")


def infinite():
    return float("inf")


def words():
    return "1.0"


def nothing():
    return None


def tell_pid_and_loop():
    Path(os.environ["FSPO_TEST_PIDS"]).write_text(f"{os.getpid()} {os.getppid()}")
    loop()
