"""The sandbox: limits, no network, no writable files, no process left; and the reward of programs in it."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import fspo.tasks as tasks
from fspo.tasks import Scorer
from fspo.tasks.code import extract_program
from fspo.tasks.sandbox import Limits, Outcome, run_python

if sys.platform != "linux":
    pytest.skip("the sandbox is for Linux", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("isolated", "no_process_left")


SECONDS = 60.0  # for programs that end, on a slow machine


def run(code: str, seconds: float = SECONDS, **limits: Any) -> Outcome:
    return run_python(code, [""], Limits(seconds, **limits))[0]


def test_programs_read_their_input_and_print() -> None:
    outcomes = run_python("print(int(input()) * 2)", ["1", "21", "x"], Limits(SECONDS))
    assert [(o.status, o.stdout) for o in outcomes] == [("ok", "2\n"), ("ok", "42\n"), ("error", "")]


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


def test_code_reward(doubling: str) -> None:
    spec = {"name": f"code:{doubling}", "eval_path": doubling, "seconds": 60, "answer_seconds": 600}
    task, graded = tasks.get(spec), tasks.get(spec | {"graded": True})
    example = task.example("eval", 0)
    assert example.solution is not None
    completions = [
        example.solution,
        "I think:\n```python\nn = int(input())\nprint(n + n)\n```\nDone.",
        "print(int(input()) * 2)",
        "print(2)",
        "import os; os._exit(0)",
        "not python at all",
        "print('\\0')\0",
    ]
    with Scorer(task) as scorer:
        values = [score.value for score in scorer.score([example] * 7, completions)]
    assert values == [1, 1, 1, 0, 0, 0, 0]
    assert not scorer.failures
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


def test_rows_without_usable_tests_are_refused_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    good = {"prompt": "p", "tests": [{"input": "1", "output": "2"}]}
    path.write_text(json.dumps(good) + "\n" + json.dumps({"prompt": "q", "tests": [{"input": "1"}]}) + "\n")
    task = tasks.get({"name": f"code:{path}", "eval_path": str(path)})
    with pytest.raises(ValueError, match="has no usable tests: write"):
        Scorer(task).__enter__()


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
    assert not scorer.failures


def test_an_answer_has_a_time_limit_for_all_its_tests() -> None:
    """After a microsecond the runs after the first are not begun."""
    outcomes = run_python("print(1)", [""] * 50, Limits(SECONDS, answer_seconds=1e-6))
    assert outcomes[1:] == [Outcome("timeout", "")] * 49
