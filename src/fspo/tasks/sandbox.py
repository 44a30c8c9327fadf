"""Run a Python program that nobody has read: limited, in an empty folder, and without a network."""

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

LONGEST = 100_000  # bytes of a program: it is passed as one argument, which Linux limits to 128 KiB


@dataclass(frozen=True)
class Limits:
    """What one run of a program may use."""

    seconds: float = 4.0  # of wall clock, and of processor time rounded up
    memory_mb: int = 512  # of address space, in each of its processes
    processes: int = 8
    file_mb: int = 8
    output_kb: int = 256


@dataclass(frozen=True)
class Outcome:
    """What a program printed, and how it ended: ok, error, timeout or output (it printed too much)."""

    status: str
    stdout: str


def run_python(
    code: str,
    inputs: Sequence[str],
    limits: Limits = Limits(),  # noqa: B008  (frozen)
    allow_network: bool = False,
    stop_early: bool = False,
) -> list[Outcome]:
    """Run the program once an input; with `stop_early` the first run that does not end well is the last."""
    if sys.platform != "linux":
        raise RuntimeError("programs can be run in a sandbox on Linux only: use another task here")
    if len(code.encode("utf-8", "replace")) > LONGEST or "\0" in code:
        return [Outcome("error", "") for _ in inputs]
    job = {
        "code": code,
        "inputs": list(inputs),
        "allow_network": allow_network,
        "stop_early": stop_early,
        **vars(limits),
    }
    # A program stopped for its time is given a second to be taken down.
    patience = 10.0 + len(inputs) * (limits.seconds + 1.0)
    script = str(Path(__file__).with_name("sandbox_child.py"))
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
            text, _ = process.communicate(json.dumps(job).encode(), timeout=patience)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    reply: dict[str, Any] = json.loads(text) if text else {"refused": "the sandbox ended early"}
    if "refused" in reply:
        raise RuntimeError(
            f"this machine does not let a program be cut off from the network ({reply['refused']}): "
            f"set allow_network=True to run it with the other limits only"
        )
    return [Outcome(**outcome) for outcome in reply["outcomes"]]
