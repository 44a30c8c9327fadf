"""The isolation of programs: the hostile programs, the filter of system calls, and machines without isolation."""

import errno
import json
import os
import platform
import re
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fspo.tasks.sandbox import launch
from fspo.tasks.sandbox.launch import Limits, python_tree, run_python
from fspo.tasks.sandbox.syscall_filter import seccomp_program
from hostile import attack

if sys.platform != "linux":
    pytest.skip("the sandbox is for Linux", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
SANDBOX = Path(launch.__file__).parent
PATIENT = Limits(seconds=60.0)  # for programs that end, on a slow machine
ORDINARY = 64123  # a user id without an account
QUICK = (
    "find_task_by_cmdline", "host_files", "supervisor", "sockets", "fill_folder", "processes_for_next_run",
    "file_leases", "uncounted_memory",
)  # fmt: skip
REFUSED = """
import sys
from fspo.tasks.sandbox.launch import Limits, run_python
try:
    run_python("print(1)", [""])
except RuntimeError as error:
    print(error)
for code, seconds in (("print(1)", 60.0), ("import time; time.sleep(600)", 0.5)):
    print(run_python(code, [""], Limits(seconds), isolation="limits")[0].status)
"""

FORKS = """
import sys
from fspo.tasks.sandbox import launch
from fspo.tasks.sandbox.launch import Limits, run_python
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
for launch.ISOLATED in [(name,) for name in sys.argv[1:]]:
    print(run_python(code, [""], Limits(60.0, processes=6))[0].stdout, end="")
"""


@pytest.fixture
def isolated() -> None:
    """Skip where the machine, as a plain container, does not allow isolation."""
    try:
        run_python("", [""])
    except RuntimeError as refused:
        if os.environ.get("CI"):  # there programs can be isolated: a refusal is a failure
            raise
        pytest.skip(str(refused))


@pytest.fixture
def public() -> Iterator[Path]:
    """A copy of the sandbox and of the hostile programs that every user can read."""
    folder = Path(tempfile.mkdtemp(prefix="public-"))
    (folder / "fspo" / "tasks").mkdir(parents=True)
    for path in (folder / "fspo", folder / "fspo" / "tasks"):
        (path / "__init__.py").touch()
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(SANDBOX, folder / "fspo" / "tasks" / "sandbox", ignore=skip)
    shutil.copytree(ROOT / "tests" / "hostile", folder / "hostile", ignore=skip)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    yield folder
    shutil.rmtree(folder)


def python(public: Path, who: str, arguments: list[str], prefix: tuple[str, ...] = ()) -> str:
    """Run Python as this user or as an ordinary one, with an interpreter that this user can start."""
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


def attacked(public: Path, who: str, backend: str, *names: str) -> dict[str, str]:
    if who == "root" and os.getuid() != 0:
        pytest.skip("this test needs root")
    if backend == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    reached: dict[str, str] = json.loads(python(public, who, [str(public / "hostile" / "attack.py"), backend, *names]))
    return reached


@pytest.mark.slow
@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize("backend", ["namespaces", "bubblewrap"])
@pytest.mark.parametrize("who", ["root", "user"])
def test_no_attack_succeeds(public: Path, who: str, backend: str) -> None:
    reached = attacked(public, who, backend)
    assert len(reached) == len(attack.names()) >= 20
    assert {name: how for name, how in reached.items() if how} == {}


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize("who", ["root", "user"])
def test_the_worst_attacks_fail(public: Path, who: str) -> None:
    assert attacked(public, who, "namespaces", *QUICK) == dict.fromkeys(QUICK, "")


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize("who", ["root", "user"])
def test_a_program_has_all_of_its_processes(public: Path, who: str) -> None:
    """Also where the supervisor's own processes count against the same limit."""
    names = ["namespaces", *(["bubblewrap"] if shutil.which("bwrap") else [])]
    assert python(public, who, ["-c", FORKS, *names]).split() == ["5"] * len(names)


def test_the_attacks_succeed_without_isolation(public: Path) -> None:
    """So that a corpus that has stopped attacking does not pass."""
    names = ("find_task_by_cmdline", "host_files", "supervisor")
    assert all(attacked(public, "root" if os.getuid() == 0 else "user", "limits", *names).values())


@pytest.mark.usefixtures("isolated")
def test_a_program_sees_the_interpreter_and_its_libraries_only() -> None:
    code = """
import os, ssl, sqlite3, zoneinfo
for names in (os.listdir("/"), os.listdir("/dev"), os.listdir("/proc"), os.environ): print(*names)
"""
    outcome = run_python(code, [""], PATIENT)[0]
    assert outcome.status == "ok"
    root, devices, processes, environment = (line.split() for line in outcome.stdout.splitlines())
    paths = (*python_tree().mounts, *dict(python_tree().links), str(SANDBOX))
    assert set(root) == {"box", "dev", "proc"} | {path.split("/")[1] for path in paths}
    assert set(devices) == {"fd", "full", "null", "random", "stderr", "stdin", "stdout", "urandom", "zero"}
    assert [name for name in processes if name.isdigit()] == ["2"]
    assert set(environment) <= {"LC_CTYPE"}  # set by Python itself


@pytest.mark.usefixtures("isolated")
def test_usual_programs_run() -> None:
    code = """
import asyncio, concurrent.futures, subprocess, sys, tempfile, threading
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


def test_without_namespaces_programs_are_refused_unless_limits_are_enough(public: Path) -> None:
    """In a user namespace that may not make further namespaces, as in a plain container."""
    closed = 'echo 0 > /proc/sys/user/max_mnt_namespaces && exec "$@"'
    prefix: tuple[str, ...] = ("unshare", "--user", "--map-root-user", "sh", "-c", closed, "sh")
    if subprocess.run([*prefix[:3], "true"], capture_output=True).returncode:
        prefix = ()  # this is such a container
    said, *statuses = python(public, "user", ["-c", REFUSED], prefix).splitlines()
    assert re.fullmatch(
        r"programs cannot be isolated on this machine \(bubblewrap: .+; namespaces: .*unshare: .+\): "
        r"install bubblewrap or allow user namespaces, "
        r"or set isolation=limits to run them where they can read your files",
        said,
    )
    assert statuses == ["ok", "timeout"]


def test_a_machine_without_a_filter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(RuntimeError, match="no system call filter for 'riscv64', only for x86_64 and aarch64"):
        run_python("print(1)", [""])
    assert run_python("print(1)", [""], PATIENT, isolation="limits")[0].stdout == "1\n"


def verdict(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    """What the filter returns for a call: an interpreter of the instructions that it uses."""
    data = struct.pack("=IIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    at = value = 0
    while True:
        code, yes, no, k = struct.unpack_from("=HBBI", program, 8 * at)
        if code == 0x06:
            return int(k)
        if code == 0x20:
            value = struct.unpack_from("=I", data, k)[0]
            at += 1
        else:
            at += 1 + (yes if {0x15: value == k, 0x35: value >= k, 0x45: bool(value & k)}[code] else no)


@pytest.mark.parametrize(
    ("machine", "architecture", "numbers"),
    [
        (
            "x86_64",
            0xC000003E,
            {"read": 0, "clone": 56, "ptrace": 101, "prlimit": 302, "shmget": 29, "pair": 53, "setrlimit": 160}
            | {"fcntl": 72, "vmsplice": 278, "splice": 275, "flock": 73, "sync": 162},
        ),
        (
            "aarch64",
            0xC00000B7,
            {"read": 63, "clone": 220, "ptrace": 117, "prlimit": 261, "shmget": 194, "pair": 199, "setrlimit": 164}
            | {"fcntl": 25, "vmsplice": 75, "splice": 76, "flock": 32, "sync": 81},
        ),
    ],
)
def test_the_filter_on_both_machines(machine: str, architecture: int, numbers: dict[str, int]) -> None:
    program, allow, error = seccomp_program(machine), 0x7FFF0000, 0x50000
    for name, arguments, wanted in (
        ("read", (), allow),
        ("ptrace", (), error | errno.EPERM),
        ("shmget", (), error | errno.EPERM),
        ("clone", (0x11,), allow),
        ("clone", (0x10000011,), error | errno.EPERM),
        ("prlimit", (0, 9), allow),
        ("prlimit", (0, 4), error | errno.EPERM),
        ("prlimit", (1, 9), error | errno.EPERM),
        ("setrlimit", (9,), allow),
        ("setrlimit", (4,), error | errno.EPERM),
        ("pair", (1,), allow),
        ("pair", (2,), error | errno.EPERM),
        ("fcntl", (3, 6), allow),  # F_SETLK, which sqlite uses
        *(("fcntl", (3, command), error | errno.EPERM) for command in (1024, 1026, 1031)),
        *((name, (), error | errno.EPERM) for name in ("vmsplice", "splice", "flock", "sync")),
    ):
        assert verdict(program, architecture, numbers[name], *arguments) == wanted, name
    assert verdict(program, architecture, 435) == error | errno.ENOSYS
    assert verdict(program, architecture, 451) == error | errno.ENOSYS
    assert verdict(program, architecture, 0x40000000) == error | errno.ENOSYS
    assert verdict(program, 0x40000003, numbers["read"]) == 0x80000000


def test_with_limits_only_nothing_stays_in_the_temporary_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    nested = "import os\nfor _ in range(1200):\n  os.mkdir('d'); os.chdir('d')\nos.chmod('.', 0)\nprint(1)"
    assert run_python(nested, [""], PATIENT, isolation="limits")[0].stdout == "1\n"
    daemon = "import os, time\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n    time.sleep(60)"
    assert run_python(daemon, [""], PATIENT, isolation="limits")[0].status == "ok"
    assert list(tmp_path.iterdir()) == []
