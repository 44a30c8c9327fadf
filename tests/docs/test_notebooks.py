"""The notebooks run from top to bottom, and are kept without outputs."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSPO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    book = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(book, resources=where, iopub_timeout=600, startup_timeout=600).execute()
    printed = "".join(out.get("text", "") for cell in book.cells for out in cell.get("outputs", []))
    assert "LRE" in printed


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path: Path) -> None:
    book = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    assert len(book.cells) > 5
    for cell in book.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
