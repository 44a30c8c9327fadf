"""Writes a run folder, for every engine."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from fspo.files import BadLine, json_lines, json_text, replace_file, replacing
from fspo.runs import rows as row_files
from fspo.runs.reader import read_config, read_facts
from fspo.runs.schema import LINES, Change, Facts, Line
from fspo.settings import changes


class RunWriter:
    """The files of a run's folder. Nothing is written that is not in the schema."""

    def __init__(self, folder: str | Path, *, keep_rows: bool = True) -> None:
        self.folder = Path(folder)
        self.keep_rows = keep_rows
        self.folder.mkdir(parents=True, exist_ok=True)

    def describe(self, config: Mapping[str, Any], *, engine: str, threads: int | None = None) -> None:
        """config.yaml and run.json; where the folder has them already, run.json keeps what has changed."""
        text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
        facts = Facts(
            engine=engine, versions=_versions(engine), python=platform.python_version(), threads=threads,
            changes=self._changes(dict(config)),
        )  # fmt: skip
        replace_file(self.folder / "config.yaml", text)
        replace_file(self.folder / "run.json", json_text(facts.model_dump(exclude_none=True), indent=1))

    def _changes(self, config: dict[str, Any]) -> list[Change]:
        """What earlier starts changed, and what this one does."""
        before = read_config(self.folder / "config.yaml", [])
        found = changes(before, config).items() if before else ()
        earlier = read_facts(self.folder / "run.json", []).changes
        return [*earlier, *(Change(setting=key, before=old, after=new) for key, (old, new) in found)]

    def append(self, line: Line) -> None:
        """One more line of its file, given to the system when this returns."""
        text = json_text(line.model_dump(exclude_none=True))
        with open(self.path(type(line)), "a", encoding="utf-8") as file:
            file.write(text + "\n")

    def rows(self, step: int, columns: dict[str, list[Any]]) -> None:
        """The rows of a step, see `fspo.runs.rows`."""
        if self.keep_rows and columns["step"]:
            with replacing(row_files.path_of(self.folder, step)) as scratch:
                row_files.table(columns).write_parquet(scratch)

    def cut(self, step: int) -> None:
        """Drop what was written after `step`, so that a resumed run writes it again."""
        for kind in LINES:
            path = self.path(kind)
            if path.is_file():
                self._replace(path, [row for row in _rows(path) if row["step"] <= step])
        folder = row_files.folder_of(self.folder)
        for scratch in folder.glob("*.writing"):
            scratch.unlink()
        for path in row_files.files(self.folder):
            if row_files.step_of(path) > step:
                path.unlink()

    def merge(self, kind: type[Line], lines: list[Line]) -> None:
        """Add lines to a file, in the order of their steps; a line of the same step (and split) takes its place."""
        path = self.path(kind)
        known = list(_rows(path)) if path.is_file() else []
        known += [line.model_dump(exclude_none=True) for line in lines]
        table = {(row["step"], str(row.get("split"))): row for row in known}
        self._replace(path, [table[key] for key in sorted(table)])

    def path(self, kind: type[Line]) -> Path:
        return self.folder / f"{kind.file}.jsonl"

    @staticmethod
    def _replace(path: Path, lines: list[dict[str, Any]]) -> None:
        replace_file(path, "".join(json_text(line) + "\n" for line in lines))


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file that belong to a step; whatever else stands there is left out."""
    return (row for row in json_lines(path) if not isinstance(row, BadLine) and isinstance(row.get("step"), int))


def _versions(engine: str) -> dict[str, str]:
    names = ["fspo", "torch", "transformers", *({"local": []}.get(engine, [engine]))]
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
