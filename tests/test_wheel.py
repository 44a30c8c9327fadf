"""The wheel: what is in it, and that it runs where only it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import fspo
from fspo import recipes

ROOT = Path(__file__).parents[1]
SOURCE = Path(fspo.__file__).parent

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out), str(ROOT)]
    subprocess.run(command, check=True, timeout=500)
    return next(out.glob("*.whl"))


def test_everything_that_the_package_reads_is_inside(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    tree = {path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {f"fspo/{path.relative_to(SOURCE)}" for path in tree} <= inside
    assert {f"fspo/recipes/{name}.yaml" for name in recipes.names()} <= inside
    assert {"fspo/py.typed", "fspo/comparisons/suites/quick.yaml", "fspo/pages/templates/shell.html"} <= inside
    assert not any(name.startswith(("tests/", "benchmarks/")) for name in inside)


def test_its_metadata(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    info = f"fspo-{fspo.__version__}.dist-info"
    metadata = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
    assert metadata["Version"] == fspo.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert {"train", "trl", "verl", "audit"} <= set(metadata.get_all("Provides-Extra") or [])
    assert "Typing :: Typed" in (metadata.get_all("Classifier") or [])
    points = archive.read(f"{info}/entry_points.txt").decode()
    assert "fspo = fspo.cli.main:main" in points
    assert "fspo = fspo.engines.verl.plugin" in points


def test_it_runs_in_a_fresh_environment(wheel: Path, tmp_path: Path) -> None:
    """Its dependencies are those of this environment, through a path file; the package itself is the wheel's."""
    place = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True, timeout=200)
    python = place / "bin" / "python"
    command = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", str(wheel)]
    subprocess.run(command, check=True, timeout=200)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = place / "lib" / version / "site-packages"
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}

    def run(*words: str) -> str:
        done = subprocess.run([*words], capture_output=True, text=True, timeout=500, cwd=tmp_path, env=clean)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run(str(python), "-c", "import fspo; print(fspo.__file__)").startswith(str(packages))
    program = str(place / "bin" / "fspo")
    assert run(program, "--version").strip() == f"fspo {fspo.__version__}"
    assert run(str(python), "-m", "fspo", "--version").strip() == f"fspo {fspo.__version__}"
    assert "gsm8k-24gb" in run(program, "recipes")
    small = ["model.path=tiny:1x32", "warmup=null", "steps=1", "rollout.prompts=4", "rollout.group=4", "eval.prompts=4"]
    run(program, "train", *small, "--out", "run")
    assert "Clip rate by length" in (tmp_path / "run" / "report.html").read_text()
