"""Every public name has a docstring with an example that does what it says; so does the one page of code."""

from __future__ import annotations

import doctest
import importlib
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fspo

NAMES = [name for name in fspo.__all__ if not name.startswith("__")]
EXAMPLES = {
    example.name: example
    for path in sorted(Path(fspo.__file__).parent.rglob("*.py"))
    if ">>> " in path.read_text()
    for module in [importlib.import_module(".".join(("fspo", *path.relative_to(Path(fspo.__file__).parent).parts))
                                           .removesuffix(".py").removesuffix(".__init__"))]
    for example in doctest.DocTestFinder(exclude_empty=True).find(module)
    if example.examples
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_public_names_have_an_example(name: str) -> None:
    value = getattr(fspo, name)
    home = value.__name__ if isinstance(value, ModuleType) else f"{value.__module__}.{value.__qualname__}"
    assert home in EXAMPLES, f"fspo.{name} has no example in its docstring"


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_do_what_they_say(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(EXAMPLES[name], out=outcome.append)
    assert not runner.failures, "".join(outcome)


MINIMAL = Path(__file__).parents[1] / "examples" / "minimal.py"


def test_the_one_page_of_code_runs_as_a_script() -> None:
    done = subprocess.run([sys.executable, MINIMAL, "--steps", "5"], capture_output=True, text=True)
    assert "of the tokens right" in done.stdout, done.stderr
    assert "Clip rate by length" in done.stdout, done.stderr


@pytest.mark.slow
def test_the_one_page_of_code_learns_and_shows_what_each_range_clips() -> None:
    """FSPO clips all lengths alike where a fixed range clips the long and GSPO the short."""
    page: dict[str, Any] = runpy.run_path(str(MINIMAL))
    slopes = {}
    for name in ("fspo", "rloo", "gspo"):
        shares, rows = page["train"](page["Args"](objective=name, steps=20))
        assert shares[0] < 0.2
        assert shares[-1] > 0.4
        bins = fspo.fairness.measure(rows["length"], rows["accepted"], bins=4).bins
        slopes[name] = bins[-1].clip_rate - bins[0].clip_rate
    assert slopes["rloo"] > 0.2
    assert slopes["gspo"] < -0.05
    assert abs(slopes["fspo"]) < 0.1
