"""An audit, a report and everything else about finished runs work where torch is not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fspo
from helpers.synthetic import make_run

ROOT = Path(__file__).parents[1]
MISSING = ("torch", "transformers", "tokenizers", "safetensors", "peft", "gguf", "psutil", "pebble", "trl", "verl")

# Looks the packages up before anything else does, and says that they are not there.
BLOCK = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {MISSING!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Refuse())
"""
LIBRARY = """
import sys, numpy as np, fspo
random = np.random.default_rng(0)
length = random.integers(10, 500, 3000)
S = 0.02 * np.sqrt(length) * random.normal(size=3000)
print(fspo.fairness.measure(length, np.abs(S) < 0.2))
for name in fspo.objectives.names():
    fspo.objectives.get(name).band(length, fspo.Totals(1, 1, 0.0))
tokens = [list(random.normal(0, 0.02, n)) for n in length[:60]]
columns = {"logprobs": tokens, "old_logprobs": [[0.0] * len(t) for t in tokens], "advantage": random.normal(size=60)}
for name in set(fspo.objectives.names()) - {"dppo", "fspo_gate"}:  # these look at probabilities, and learn a range
    assert fspo.audit(columns, rule=name).own is not None
for name in fspo.__all__:
    getattr(fspo, name)
fspo.TrainConfig(objective="gspo", task="add")
regime = fspo.laboratory.Regime(updates=2)
fspo.laboratory.fixed_point(fspo.laboratory.conflict([8, 512]), fspo.objectives.get("fspo"), regime)
assert "torch" not in sys.modules
"""
EACH = """
import json
from fspo.cli.main import main
for command in sys.argv[1:]:
    sys.argv = ["fspo", *json.loads(command)]
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, command
"""
COMMANDS = [
    ["--help"], ["--version"], ["train", "--help"], ["methods"], ["methods", "fspo"], ["tasks"], ["tasks", "sort"],
    ["audit", "{run}", "--html", "{out}/audit.html", "--json", "-"], ["audit", "{run}", "--rule", "gspo"],
    ["report", "{run}", "--out", "{out}/report.html"], ["explore", "--out", "{out}/explore.html"],
    ["compare"], ["recipes"], ["recipes", "gsm8k-24gb"],
]  # fmt: skip
NEEDS_TORCH = [["train"], ["eval", "{run}"], ["compare", "smoke"]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("made") / "run")


def started(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", BLOCK + code, *arguments], capture_output=True, text=True)


def test_the_library_without_torch() -> None:
    done = started(LIBRARY)
    assert done.returncode == 0, done.stderr


def test_commands_without_torch(run: Path, tmp_path: Path) -> None:
    """One after the other in one process."""
    done = started(EACH, *(json.dumps([a.format(run=run, out=tmp_path) for a in command]) for command in COMMANDS))
    assert done.returncode == 0, done.stderr


def test_verl_without_its_packages_is_refused_with_all_that_is_missing() -> None:
    done = started("from fspo.cli.main import main; main()", "train", "--engine", "verl")
    assert done.returncode == 2
    assert done.stderr.startswith("error: --engine verl cannot start: ")


@pytest.mark.parametrize("command", NEEDS_TORCH, ids=" ".join)
def test_commands_that_need_torch_say_what_to_install(command: list[str], run: Path, tmp_path: Path) -> None:
    code = f"import os; os.chdir({str(tmp_path)!r}); from fspo.cli.main import main; main()"
    done = started(code, *(a.format(run=run, out=tmp_path) for a in command))
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: this command needs the package ")
    assert done.stderr.strip().endswith("which is not installed: pip install 'fspo[train]'")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.slow
def test_a_real_environment_without_torch(run: Path, tmp_path: Path) -> None:
    """From the package index, with nothing but what the package requires: a notebook's first cell installs it."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"FSPO_SOURCE": str(ROOT), "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    cells = json.loads((ROOT / "notebooks" / "audit.ipynb").read_text())["cells"]
    notebook = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    subprocess.run([python, "-c", notebook], check=True, env=environment, cwd=tmp_path)
    assert subprocess.run([python, "-c", "import torch"], capture_output=True).returncode
    script = str(tmp_path / "venv" / "bin" / "fspo")
    subprocess.run([python, "-c", LIBRARY], check=True, env=environment, cwd=tmp_path)
    for command in COMMANDS:
        arguments = [a.format(run=run, out=tmp_path) for a in command]
        subprocess.run([script, *arguments], check=True, env=environment, cwd=tmp_path, stdout=subprocess.DEVNULL)
    shown = subprocess.run([script, "--version"], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert shown.stdout == f"fspo {fspo.__version__}\n"
