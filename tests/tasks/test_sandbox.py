"""The isolation of programs: the hostile programs, and machines without isolation."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fspo.tasks import sandbox
from fspo.tasks.sandbox import Limits, run_python
from hostile import attack

if sys.platform != "linux":
    pytest.skip("the sandbox is for Linux", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
PATIENT = Limits(seconds=60.0)  # for programs that end, on a slow machine
ORDINARY = 64123  # a user id without an account
QUICK = ("host_files", "other_processes", "processes_for_next_run")
REFUSED = """
from fspo.tasks.sandbox import Limits, run_python
try:
    run_python("print(1)", [""])
except RuntimeError as error:
    print(error)
for code, seconds in (("print(1)", 60.0), ("import time; time.sleep(600)", 0.5)):
    print(run_python(code, [""], Limits(seconds), isolation="limits")[0].status)
"""

FORKS = """
from fspo.tasks.sandbox import Limits, run_python
code = '''
import os, time
for n in range(20):
    try:
        if os.fork() == 0:
            time.sleep(60)
    except OSError:
        break
print(n)
'''
print(run_python(code, [""], Limits(60.0, processes=6))[0].stdout)
"""


@pytest.fixture
def public() -> Iterator[Path]:
    """A copy of the sandbox and of the hostile programs that every user can read."""
    folder = Path(tempfile.mkdtemp(prefix="public-"))
    (folder / "fspo" / "tasks").mkdir(parents=True)
    for path in (folder / "fspo", folder / "fspo" / "tasks"):
        (path / "__init__.py").touch()
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(sandbox.__file__).parent, folder / "fspo" / "tasks" / "sandbox", ignore=skip)
    shutil.copytree(ROOT / "tests" / "hostile", folder / "hostile", ignore=skip)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    yield folder
    shutil.rmtree(folder)


def python(public: Path, who: str, arguments: list[str], prefix: tuple[str, ...] = ()) -> str:
    """Run Python as root or as an ordinary user, with an interpreter that this user can start."""
    if who == "root" and os.getuid() != 0:
        pytest.skip("this test needs root")
    system = [path for name in ("python3.11", "python3") if (path := shutil.which(name, path="/usr/bin"))]
    user = None if who == "root" or os.getuid() else ORDINARY
    interpreters = [path for path in (sys.executable, *system) if user is None or _open_to_all(path)]
    if not interpreters:
        pytest.skip("an ordinary user can start no Python on this machine")
    done = subprocess.run(
        [*prefix, interpreters[0], *arguments],
        env={"PYTHONPATH": str(public), "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/",
        user=user,
        group=user,
        extra_groups=None if user is None else [],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def _open_to_all(path: str) -> bool:
    real = Path(path).resolve()
    return all(os.stat(folder).st_mode & stat.S_IXOTH for folder in (real, *real.parents))


def attacked(public: Path, who: str, isolation: str, *names: str) -> dict[str, str]:
    script = str(public / "hostile" / "attack.py")
    reached: dict[str, str] = json.loads(python(public, who, [script, isolation, *names]))
    return reached


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize("names", [pytest.param(tuple(attack.names()), marks=pytest.mark.slow, id="all"), QUICK])
@pytest.mark.parametrize("who", ["root", "user"])
def test_no_attack_succeeds(public: Path, who: str, names: tuple[str, ...]) -> None:
    assert attacked(public, who, "full", *names) == dict.fromkeys(names, "")
    assert len(attack.names()) == 11


def test_the_attacks_succeed_without_isolation(public: Path) -> None:
    """So that a corpus that has stopped attacking does not pass."""
    names = ("host_files", "sockets", "other_processes")
    assert all(attacked(public, "root" if os.getuid() == 0 else "user", "limits", *names).values())


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize("who", ["root", "user"])
def test_a_program_has_all_of_its_processes(public: Path, who: str) -> None:
    """Also where the first process of the namespace counts against the same limit."""
    assert python(public, who, ["-c", FORKS]).strip() == "5"


@pytest.mark.usefixtures("isolated")
def test_a_program_sees_the_interpreter_and_its_libraries_only() -> None:
    code = """
import os, ssl, sqlite3, zoneinfo
for names in (os.listdir("/"), os.listdir("/proc"), os.environ, globals()): print(*names)
"""
    outcome = run_python(code, [""], PATIENT)[0]
    assert outcome.status == "ok"
    root, processes, environment, names = (line.split() for line in outcome.stdout.splitlines())
    assert set(root) == {"box", "dev", "proc"} | {path.split("/")[1] for path in sandbox.visible()}
    assert [name for name in processes if name.isdigit()] == ["1", "2"]  # bubblewrap and the program
    assert set(environment) <= {"PWD", "LC_CTYPE"}
    assert [name for name in names if not name.startswith("__")] == ["os", "ssl", "sqlite3", "zoneinfo", "names"]


@pytest.mark.usefixtures("isolated")
def test_usual_programs_run() -> None:
    code = """
import asyncio, concurrent.futures, pickle, subprocess, sys, tempfile, threading
class Own: pass
pickle.loads(pickle.dumps(Own()))
print(asyncio.run(asyncio.sleep(0, "async")))
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    print(list(pool.map(str, range(3))))
print(subprocess.run([sys.executable, "-c", "print('inner')"], capture_output=True, text=True).stdout)
with tempfile.NamedTemporaryFile("w+") as file:
    file.write("x")
print(open("/dev/stdin").read(), file=open("/dev/stdout", "w"))
exit()
"""
    outcome = run_python(code, ["given"], PATIENT)[0]
    assert outcome.status == "ok"
    assert sorted(outcome.stdout.split()) == sorted(["async", "['0',", "'1',", "'2']", "inner", "given"])


def test_without_bubblewrap_programs_are_refused_unless_limits_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(
        RuntimeError,
        match=r"programs cannot be isolated on this machine \(bubblewrap is not installed\): install bubblewrap and "
        r"let it make namespaces, or set isolation=limits to run them where they can read your files",
    ):
        run_python("print(1)", [""])


def test_without_namespaces_programs_are_refused_unless_limits_are_enough(public: Path) -> None:
    """In a user namespace that may not make further namespaces, as in a plain container."""
    closed = 'echo 0 > /proc/sys/user/max_mnt_namespaces && exec "$@"'
    prefix: tuple[str, ...] = ("unshare", "--user", "--map-root-user", "sh", "-c", closed, "sh")
    if subprocess.run([*prefix[:3], "true"], capture_output=True).returncode:
        prefix = ()  # this is such a container
    said, *statuses = python(public, "user", ["-c", REFUSED], prefix).splitlines()
    assert re.fullmatch(r"programs cannot be isolated on this machine \(bwrap: .+\): install bubblewrap and .+", said)
    assert statuses == ["ok", "timeout"]


def test_with_limits_only_nothing_stays_in_the_temporary_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    nested = "import os\nfor _ in range(1200):\n  os.mkdir('d'); os.chdir('d')\nprint(1)"
    assert run_python(nested, [""], PATIENT, isolation="limits")[0].stdout == "1\n"
    assert list(tmp_path.iterdir()) == []
