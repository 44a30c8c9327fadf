"""The package as a whole: what importing it costs, and that layers import only from those before them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fspo

SOURCE = Path(fspo.__file__).parent
# Later ones may import earlier ones.
LAYERS = (
    "settings", "objectives", "advantages", "fairness", "tasks", "local", "engines", "report", "auditing", "comparing",
    "cli",
)  # fmt: skip


def test_importing_the_library_is_quick_and_light() -> None:
    """Beyond torch, in processor time: the clock of a busy machine says nothing."""
    code = (
        "import sys, time, torch; t = time.process_time();"
        "import fspo, fspo.objectives, fspo.advantages, fspo.fairness;"
        "print(time.process_time() - t); print(*sorted({m.split('.')[0] for m in sys.modules}))"
    )
    command = [sys.executable, "-c", code]
    outputs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(5)]
    seconds, modules = zip(*(o.splitlines() for o in outputs), strict=True)
    assert min(map(float, seconds)) < 0.3
    for heavy in ("transformers", "pandas", "polars", "matplotlib", "datasets", "scipy", "trl", "verl"):
        assert heavy not in modules[0].split(), heavy


def test_help_does_not_load_torch() -> None:
    code = "import sys, fspo.cli; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_layers_import_only_from_those_before_them(path: Path) -> None:
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if own == "__init__":
        return
    for node in ast.walk(ast.parse(path.read_text())):
        modules = []
        if isinstance(node, ast.ImportFrom) and node.module:
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        for module in modules:
            parts = module.split(".")
            if parts[0] == "fspo" and parts[1] in LAYERS:
                assert LAYERS.index(parts[1]) <= LAYERS.index(own), f"{path.name} imports {module}"


def test_unknown_parts_are_named() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'objective'"):
        fspo.objective  # noqa: B018
    assert fspo.Totals is fspo.objectives.Totals
