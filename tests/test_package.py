"""The package as a whole: what importing it costs, which part may import which, and the size of its files."""

from __future__ import annotations

import ast
import importlib
import inspect
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fspo

SOURCE = Path(fspo.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
PACKAGES = sorted({path.parent for path in FILES})

# Each imports only from those before it.
ROOMS = (
    "text", "files", "ratios", "settings", "plugins", "runtime", "tensors",
    "objectives", "advantages", "fairness", "laboratory", "tasks", "recipes", "sections", "config", "runs",
    "model", "rollout", "training", "engines",
    "pages", "report", "audits", "comparisons", "api", "exporting", "cli",
)  # fmt: skip
PAGES = {"pages", "report", "audits", "comparisons", "cli"}  # a page is never imported from below
RESULTS = {"report", "audits", "comparisons"}  # and these do not import each other

LINES, FILES_OF_A_PACKAGE = 300, 15
HEAVY = ("transformers", "pandas", "polars", "matplotlib", "datasets", "scipy", "trl", "verl")


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> Iterator[tuple[str, str]]:
    """Every import of this package in a file, wherever it stands: the room, and the whole name."""
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
            if parts[0] == "fspo" and len(parts) > 1 and parts[1] in ROOMS:
                yield parts[1], name


def test_every_file_has_a_room() -> None:
    assert {room_of(path) for path in FILES} - {"__init__", "__main__"} == set(ROOMS)


@pytest.mark.parametrize("path", [p for p in FILES if room_of(p) in ROOMS], ids=name_of)
def test_rooms_import_only_from_those_before_them(path: Path) -> None:
    own = room_of(path)
    for room, name in imported_rooms(path):
        assert ROOMS.index(room) <= ROOMS.index(own), f"{name_of(path)} imports {name}"
        assert room not in PAGES or own in PAGES, f"{name_of(path)} imports the page {name}"
        assert room == own or {room, own} - RESULTS, f"{name_of(path)} imports {name}"


def test_a_name_stands_for_one_class() -> None:
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(name_of(path))
    assert not {name: found for name, found in places.items() if len(found) > 1}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < LINES


@pytest.mark.parametrize("folder", PACKAGES, ids=name_of)
def test_packages_are_small(folder: Path) -> None:
    assert len(list(folder.glob("*.py"))) <= FILES_OF_A_PACKAGE


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


def test_importing_the_library_is_quick_and_light() -> None:
    """Beyond torch, in processor time, which depends less than the clock on what else the machine does."""
    code = (
        "import sys, time, torch; t = time.process_time();"
        "import fspo, fspo.objectives, fspo.advantages, fspo.fairness;"
        "print(time.process_time() - t); print(*sorted({m.split('.')[0] for m in sys.modules}))"
    )
    fastest = math.inf
    for _ in range(5):  # a busy machine costs processor time too: the best of a few counts
        output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        seconds, modules = output.splitlines()
        assert not set(HEAVY) & set(modules.split())
        fastest = min(fastest, float(seconds))
        if fastest < 0.3:
            break
    assert fastest < 0.3


def test_help_does_not_load_torch() -> None:
    code = "import sys, fspo.cli.main; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_package_names_its_parts() -> None:
    assert set(fspo.__all__) <= set(dir(fspo))
    assert fspo.Totals is fspo.objectives.Totals
    assert callable(fspo.audit)
    with pytest.raises(AttributeError, match="has no attribute 'objective'"):
        fspo.objective  # noqa: B018


def test_the_version_has_one_home() -> None:
    from importlib.metadata import version

    assert version("fspo") == fspo.__version__
    assert (SOURCE / "py.typed").is_file()
