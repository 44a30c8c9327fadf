"""Every public name has a docstring with an example, and every example does what it says."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path
from types import ModuleType

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
