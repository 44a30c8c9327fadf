"""Run the hostile programs in the sandbox as the user of this process, and print what each of them achieved.

    python attack.py ISOLATION [NAME ...]

ISOLATION is `full`, or `limits`, where the attacks must succeed. The output is one JSON object: program -> how its
attack succeeded, or the empty string. The script needs nothing but the standard library and `fspo.tasks.sandbox`, so
that a test can run it as another user with another interpreter.
"""

import contextlib
import ctypes
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

from fspo.tasks.sandbox import Isolation, Limits, run_python

PROGRAMS = Path(__file__).with_name("programs")
LIMITS = Limits(seconds=60.0)  # no program needs its time: an attack must not fail because the machine is slow


def names() -> list[str]:
    return sorted(path.stem for path in PROGRAMS.glob("*.py"))


@contextlib.contextmanager
def scene(secret: str) -> Iterator[dict[str, Any]]:
    """A host with everything that a program might want; each part holds the secret."""
    folder = Path(tempfile.mkdtemp(prefix="scene-"))
    folder.chmod(0o755)
    task, private = folder / "task.jsonl", folder / "private.txt"
    task.write_text(json.dumps({"prompt": "p", "tests": [{"input": "1", "output": secret}]}))
    private.write_text(secret)
    private.chmod(0o600)
    sleep = "import time; time.sleep(600)"
    victims = [subprocess.Popen([sys.executable, "-c", sleep, str(task), secret]) for _ in range(2)]
    abstract = f"\0scene-{secrets.token_hex(4)}"
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0)))]
        for address in (str(folder / "socket"), abstract):
            servers.append(stack.enter_context(socket.socket(socket.AF_UNIX)))
            servers[-1].bind(address)
            servers[-1].listen()
        (folder / "socket").chmod(0o777)
        for server in servers:
            threading.Thread(target=_serve, args=(server, secret), daemon=True).start()
        memory = shared_memory.SharedMemory(create=True, size=4096)
        assert memory.buf is not None
        memory.buf[: len(secret)] = secret.encode()
        libc = ctypes.CDLL(None, use_errno=True)
        key = 1 + secrets.randbelow(2**30)
        segment = libc.shmget(key, 4096, 0o1666)
        assert segment >= 0
        try:
            yield {
                "task": str(task), "private": str(private), "unix": str(folder / "socket"), "abstract": abstract,
                "port": servers[0].getsockname()[1], "shm": key, "posix": memory.name,
                "victims": [victim.pid for victim in victims], "host": os.uname().nodename, "again": False,
                "uid": os.getuid(),
            }  # fmt: skip
            assert all(victim.poll() is None for victim in victims), "a process of the host was killed"
            assert task.read_text().count(secret) == 1, "a file of the host was changed"
            stopped = [Path(f"/proc/{victim.pid}/stat").read_text().rpartition(")")[2][1] for victim in victims]
            assert "T" not in stopped, "a process of the host was stopped"
        finally:
            libc.shmctl(segment, 0, None)
            memory.close()
            memory.unlink()
            for victim in victims:
                victim.kill()
                victim.wait()
            shutil.rmtree(folder)


def _serve(server: socket.socket, secret: str) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = server.accept()
            client.sendall(secret.encode())
            client.close()


def attack(name: str, facts: dict[str, Any], secret: str, isolation: Isolation) -> str:
    """Run one program on two inputs; returns how its attack succeeded, or nothing."""
    code = (PROGRAMS / f"{name}.py").read_text()
    try:
        outcomes = run_python(code, [json.dumps(facts), json.dumps({**facts, "again": True})], LIMITS, isolation)
    except RuntimeError as error:
        return f"it is not scored: {error}"
    if len(outcomes) != 2:
        return f"{len(outcomes)} outcomes for 2 inputs"
    for outcome in outcomes:
        if secret in outcome.stdout or "reached" in outcome.stdout:
            return f"{outcome.status}: {outcome.stdout[:200]}"
    return ""


def main(isolation: Isolation, chosen: list[str]) -> None:
    secret = f"secret{secrets.token_hex(8)}"
    reached = {}
    with scene(secret) as facts:
        for name in chosen or names():
            reached[name] = attack(name, facts, secret, isolation)
            print(name, reached[name], file=sys.stderr)
    print(json.dumps(reached))


if __name__ == "__main__":
    main("limits" if sys.argv[1] == "limits" else "full", sys.argv[2:])
