"""The package as a whole: which part may import which, what importing it loads, and what it offers."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

import fspo

SOURCE = Path(fspo.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

# Each imports only from those before it.
LAYERS = (
    "text", "files", "ratios", "settings", "runtime", "tensors",
    "objectives", "advantages", "fairness", "laboratory", "tasks", "recipes", "config", "runs",
    "model", "rollout", "training", "engines",
    "pages", "report", "audits", "comparisons", "api", "cli",
)  # fmt: skip
PAGES = {"pages", "report", "audits", "comparisons", "cli"}  # a page is never imported from below
RESULTS = {"report", "audits", "comparisons"}  # and these do not import each other

HEAVY = {"transformers", "pandas", "polars", "matplotlib", "datasets", "scipy", "trl", "verl"}


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def layer_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_layers(path: Path) -> Iterator[tuple[str, str]]:
    """Every import of this package in a file, wherever it stands: the layer, and the whole name."""
    package = ("fspo", *path.relative_to(SOURCE).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) + 1 - node.level]) + "." if node.level else ""
            names = [f"{base}{node.module or ''}.{alias.name}".replace("..", ".") for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "fspo" and len(parts) > 1 and parts[1] in LAYERS:
                yield parts[1], name


def test_every_file_has_a_layer() -> None:
    assert {layer_of(path) for path in FILES} - {"__init__", "__main__"} == set(LAYERS)


@pytest.mark.parametrize("path", [p for p in FILES if layer_of(p) in LAYERS], ids=name_of)
def test_layers_import_only_from_those_before_them(path: Path) -> None:
    own = layer_of(path)
    for layer, name in imported_layers(path):
        assert LAYERS.index(layer) <= LAYERS.index(own), f"{name_of(path)} imports {name}"
        assert layer not in PAGES or own in PAGES, f"{name_of(path)} imports the page {name}"
        assert layer == own or {layer, own} - RESULTS, f"{name_of(path)} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_modules_say_what_they_are(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("path", [p for p in FILES if "\n__all__ = " in p.read_text()], ids=name_of)
def test_public_names_exist_and_are_documented(path: Path) -> None:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    module = importlib.import_module(".".join(("fspo", *(part for part in parts if part != "__init__"))))
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value):
            assert value.__doc__, f"{module.__name__}.{name} has no docstring"


@pytest.mark.parametrize(
    ("imported", "absent"),
    [
        ("fspo, fspo.objectives, fspo.advantages, fspo.fairness", HEAVY | {"torch"}),
        ("fspo.cli.main", HEAVY | {"torch"}),
        ("fspo.engines.translate", {"torch", "transformers", "trl", "verl", "datasets", "ray"}),
        ("fspo.engines.trl.run, fspo.engines.verl.run", {"trl", "verl", "datasets", "ray"}),
    ],
)
def test_what_importing_loads(imported: str, absent: set[str]) -> None:
    code = f"import sys, {imported}; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not absent & set(done.stdout.split())


def test_the_package_offers_its_public_names_and_no_others() -> None:
    import fspo.text

    assert dir(fspo) == sorted(fspo.__all__)
    assert "text" not in dir(fspo)
    assert fspo.Totals is fspo.objectives.Totals
    with pytest.raises(AttributeError, match="has no attribute 'objective'"):
        fspo.objective  # noqa: B018


def test_the_version_has_one_home() -> None:
    assert version("fspo") == fspo.__version__
    assert (SOURCE / "py.typed").is_file()
