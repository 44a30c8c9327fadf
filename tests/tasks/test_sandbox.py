"""The sandbox: hostile programs, machines without isolation, limits, no process left; and the reward of programs."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import fspo.tasks as tasks
from fspo.tasks import Scorer, sandbox
from fspo.tasks.code import extract_program
from fspo.tasks.sandbox import Limits, Outcome, run_python
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
        env={"PYTHONPATH": str(public), "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}, cwd="/", user=user,
        group=user, extra_groups=None if user is None else [], stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
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
    # As root, where the program gets a user of its own: it looks at the processes of others.
    root = os.getuid() == 0
    names = ("host_files", "sockets", *(("other_processes",) if root else ()))
    assert all(attacked(public, "root" if root else "user", "limits", *names).values())


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
    why = "bwrap: .+" if shutil.which("bwrap") else "bubblewrap is not installed"
    assert re.fullmatch(rf"programs cannot be isolated on this machine \({why}\): install bubblewrap and .+", said)
    assert statuses == ["ok", "timeout"]


def test_with_limits_only_nothing_stays_in_the_temporary_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    nested = "import os\nfor _ in range(1200):\n  os.mkdir('d'); os.chdir('d')\nprint(1)"
    assert run_python(nested, [""], PATIENT, isolation="limits")[0].stdout == "1\n"
    assert list(tmp_path.iterdir()) == []


# --- limits, and the reward of programs -------------------------------------------------------------------------------


WATCHED = pytest.mark.usefixtures("isolated", "no_process_left")


def run(code: str, seconds: float = 60.0, **limits: Any) -> Outcome:
    return run_python(code, [""], Limits(seconds, **limits))[0]


@WATCHED
def test_programs_read_their_input_and_print() -> None:
    outcomes = run_python("print(int(input()) * 2)", ["1", "21", "x"], PATIENT)
    assert [(o.status, o.stdout) for o in outcomes] == [("ok", "2\n"), ("ok", "42\n"), ("error", "")]


@WATCHED
def test_file_size_memory_time_and_output_are_limited() -> None:
    assert run("open('f', 'wb').write(b'x' * 2**20); print('small')", file_mb=2).stdout == "small\n"
    assert run("open('f', 'wb').write(b'x' * 2**22); print('large')", file_mb=2).stdout == ""
    assert run("x = bytearray(2**20); print('small')", memory_mb=128).stdout == "small\n"
    assert run("x = bytearray(2**28); print('large')", memory_mb=128).status == "error"
    for endless in ("while True: pass", "sleep(600)", "os.close(1); sleep(600)", "os.kill(0, signal.SIGSTOP)"):
        assert run(f"import os, signal\nfrom time import sleep\n{endless}", seconds=0.5).status == "timeout"
    flood = run("while True: print('x' * 1000)", output_kb=16)
    assert flood.status == "output"
    assert len(flood.stdout) < 2**20


@WATCHED
def test_killing_the_sandbox_from_outside_takes_everything_down() -> None:
    sleep = "import time; time.sleep(600)"
    code = f"import fspo.tasks.sandbox as s\ns.run_python({sleep!r}, [''], s.Limits(seconds=600))"
    caller = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
    family: list[psutil.Process] = []
    while len(family) < 3 and caller.poll() is None:  # bubblewrap, process 1, the program
        time.sleep(0.05)
        family = psutil.Process(caller.pid).children(recursive=True)
    family[0].kill()
    _, alive = psutil.wait_procs(family, timeout=60)
    caller.kill()
    caller.wait()
    assert not alive


@pytest.fixture
def doubling(tmp_path: Path) -> str:
    row = {
        "prompt": "Read a number and print its double.",
        "tests": [{"input": str(i), "output": f"{2 * i}\n"} for i in (1, 5, 100)],
        "solution": "```python\nprint(2 * int(input()))\n```",
    }
    path = tmp_path / "code.jsonl"
    path.write_text(json.dumps(row) + "\n")
    return str(path)


@WATCHED
def test_code_reward(doubling: str) -> None:
    spec = {"name": f"code:{doubling}", "eval_path": doubling, "seconds": 60, "answer_seconds": 600}
    task, graded = tasks.get(spec), tasks.get(spec | {"graded": True})
    example = task.example("eval", 0)
    assert example.solution is not None
    completions = [
        example.solution, "I think:\n```python\nn = int(input())\nprint(n + n)\n```\nDone.", "print(int(input()) * 2)",
        "print(2)", "import os; os._exit(0)", "not python at all", "print('\\0')\0",
    ]  # fmt: skip
    with Scorer(task) as scorer:
        values = [score.value for score in scorer.score([example] * 7, completions)]
    assert values == [1, 1, 1, 0, 0, 0, 0]
    assert graded.score(example, "print(2)") == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    "completion",
    [
        "```python\nother\n```\nor\n```py\nprint(1)\n```",
        "```\nprint(1)\n```",
        "```python3\nprint(1)\n```",
        "```Python\nprint(1)\n```",
        "``` py3\nprint(1)\n```",
        "Here:\r\n```python\r\nprint(1)\r\n```\r\n",
        "```python\nprint(1)\n",
        "```python\nprint(1)\n```\nIt prints\n```\n1\n```",
        "```py\nprint(1)\n```\n```text\n1\n```",
        "```bash\npython main.py\n```\n```\nprint(1)\n```\n```output\n1\n```",
    ],
)
def test_the_last_python_block_is_the_program(completion: str) -> None:
    assert extract_program(completion).strip() == "print(1)"
    assert extract_program("print(1)") == "print(1)"


@WATCHED
def test_rows_without_usable_tests_are_refused_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    good = {"prompt": "p", "tests": [{"input": "1", "output": "2"}]}
    path.write_text(json.dumps(good) + "\n" + json.dumps({"prompt": "q", "tests": [{"input": "1"}]}) + "\n")
    task = tasks.get({"name": f"code:{path}", "eval_path": str(path)})
    with pytest.raises(ValueError, match="has no usable tests: write"):
        Scorer(task).__enter__()


@WATCHED
@pytest.mark.parametrize("graded", [False, True])
def test_no_program_is_left_without_a_score(doubling: str, graded: bool) -> None:
    """Whatever a program does to itself or to process 1 is its own 0, also after the scorer's time."""
    task = tasks.get({"name": f"code:{doubling}", "eval_path": doubling, "graded": graded, "seconds": 0.5})
    example = task.example("eval", 0)
    completions = [
        "while True: pass",
        "import os\nwhile True:\n  os.mkdir('d'); os.chdir('d')",
        "import resource\nfor i in range(9): resource.prlimit(1, resource.RLIMIT_AS, (0, 0))",
        "import os, signal\nfor i in range(1, 65): os.kill(1, i)",
        "import os\nopen(f'/proc/{os.getppid()}/fd/2', 'w').write('refused')",
        "import os, signal\nos.kill(0, signal.SIGSTOP)",
    ]
    with Scorer(task, timeout=0.2) as scorer:
        values = [score.value for score in scorer.score([example] * len(completions), completions)]
    assert values == [0.0] * len(completions)


@WATCHED
def test_an_answer_has_a_time_limit_for_all_its_tests() -> None:
    """After a microsecond the runs after the first are not begun."""
    outcomes = run_python("print(1)", [""] * 50, Limits(60.0, answer_seconds=1e-6))
    assert outcomes[1:] == [Outcome("timeout", "")] * 49
