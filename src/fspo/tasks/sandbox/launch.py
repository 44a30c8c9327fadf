"""Run an untrusted Python program with limited resources, in an empty folder and without a network."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LONGEST = 100_000  # bytes of a program: it is passed as one argument, and Linux allows 128 KiB


@dataclass(frozen=True)
class Limits:
    """What each run of a program may use."""

    seconds: float = 4.0  # of wall-clock time, and of CPU time rounded up
    memory_mb: int = 512  # address space of each process
    processes: int = 8
    file_mb: int = 8
    output_kb: int = 256


@dataclass(frozen=True)
class Outcome:
    """What a program printed, and how its run ended: ok, error, timeout, or output if it printed too much."""

    status: str
    stdout: str


def run_python(
    code: str,
    inputs: Sequence[str],
    limits: Limits = Limits(),  # noqa: B008  (frozen)
    allow_network: bool = False,
    stop_early: bool = False,
) -> list[Outcome]:
    """Run the program once per input; with `stop_early`, the first run that fails is the last."""
    if sys.platform != "linux":
        raise RuntimeError("the sandbox for programs needs Linux: use another task on this machine")
    if len(code.encode("utf-8", "replace")) > LONGEST or "\0" in code:
        return [Outcome("error", "") for _ in inputs]
    job = {
        "code": code,
        "inputs": list(inputs),
        "allow_network": allow_network,
        "stop_early": stop_early,
        **vars(limits),
    }
    # Killing a program that exceeds its time takes up to a second.
    longest_wait = 10.0 + len(inputs) * (limits.seconds + 1.0)
    script = str(Path(__file__).with_name("child.py"))
    with tempfile.TemporaryDirectory(prefix="fspo-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={},
            start_new_session=True,
        )
        try:
            text, _ = process.communicate(json.dumps(job).encode(), timeout=longest_wait)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    reply: dict[str, Any] = json.loads(text) if text else {"refused": "the sandbox ended early"}
    if "refused" in reply:
        raise RuntimeError(
            f"programs cannot be cut off from the network on this machine ({reply['refused']}): "
            f"set allow_network=True to run it with the other limits only"
        )
    return [Outcome(**outcome) for outcome in reply["outcomes"]]
