"""The command and other programs, in this process or as their own, and what a run leaves behind."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import pytest

from fspo.runs import Metrics, Observer, Timing

COMMAND = [sys.executable, "-m", "fspo"]


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    returncode: int
    stdout: str
    stderr: str


class Command(Protocol):
    """The command in this process, see the fixture `command`."""

    def __call__(self, *arguments: str, check: bool = True) -> Done: ...


def fspo(*arguments: str, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command, as a user runs it."""
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, **options)
    if check and done.returncode:
        raise AssertionError(f"exit {done.returncode}: {done.stdout}\n{done.stderr}")
    return done


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """The same, left to run."""
    return subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"}, **options,
    )  # fmt: skip


def torchrun(processes: int, module: str, *arguments: object, env: dict[str, str] | None = None) -> None:
    """A module of the tests in several processes of torch."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--local_addr", "127.0.0.1"]
    command = [sys.executable, *launch, "--nproc_per_node", str(processes), "-m", module, *map(str, arguments)]
    variables = env or os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


def lines(path: Path, count: int, process: subprocess.Popen[str]) -> int:
    """Wait until a file of a running command has this many lines; how many it has then."""
    while True:
        known = path.read_text().count("\n") if path.is_file() else 0
        if known >= count:
            return known
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.005)


def fingerprint(folder: Path) -> dict[str, str]:
    """Hashes of everything that must not depend on whether a run was interrupted."""
    last = max((folder / "checkpoints").glob("step-*"))
    files = [last / "model.safetensors", last / "optimizer.safetensors", last / "state.json"]
    files += [folder / f"{name}.jsonl" for name in ("metrics", "evaluations", "samples")]
    files += [*folder.glob("cosine.jsonl"), *sorted((folder / "records").glob("*"))]
    return {str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


class Listener(Observer):
    """Keeps the warnings of a run, and sends signals to this process after its third step."""

    def __init__(self, *numbers: int) -> None:
        self.warnings: list[str] = []
        self.numbers = numbers

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def step(self, metrics: Metrics, timing: Timing) -> None:
        for number in self.numbers if metrics.step == 3 else ():
            os.kill(os.getpid(), number)


def write_package(folder: Path, module: str, code: str, group: str, entries: dict[str, str]) -> None:
    """A module, and the metadata that an installer would write for its entry points."""
    (folder / f"{module}.py").write_text(code)
    metadata = folder / f"{module}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    lines = [f"{name} = {target}" for name, target in entries.items()]
    (metadata / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines]) + "\n")


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    """A module that cannot be installed here, and the packages that it is in, until the end of the test."""
    module, (package, _, last) = ModuleType(name), name.rpartition(".")
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, name, module)
    if package:
        if package not in sys.modules:
            stand_in(monkeypatch, package)
        monkeypatch.setattr(sys.modules[package], last, module, raising=False)


def importable(monkeypatch: pytest.MonkeyPatch, path: Path) -> str:
    """The name of this module, which can be imported until the end of the test and is forgotten then."""
    monkeypatch.syspath_prepend(str(path.parent))
    monkeypatch.setitem(sys.modules, path.stem, None)  # what is there at the end is removed
    del sys.modules[path.stem]
    return path.stem


def printed(code: str, folder: Path) -> Any:
    """What a new process with this folder on its path prints, read as JSON."""
    path = os.pathsep.join([str(folder), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
