"""The wheel: what is in it. That it runs where only it is installed is tested in test_without_torch.py."""

from __future__ import annotations

import subprocess
import sys
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
    subprocess.run(command, check=True)
    return next(out.glob("*.whl"))


def test_everything_that_the_package_reads_is_inside(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    tree = {path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {f"fspo/{path.relative_to(SOURCE)}" for path in tree} <= inside
    assert {f"fspo/recipes/{name}.yaml" for name in recipes.names()} <= inside
    assert {"fspo/py.typed", "fspo/comparisons/suites/smoke.yaml", "fspo/pages/templates/shell.html"} <= inside
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
