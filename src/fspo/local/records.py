"""What a run writes: metrics as JSON lines, one Parquet row a response and update, sampled answers.

`metrics.jsonl`, `evaluations.jsonl`, `samples.jsonl`, `cosine.jsonl` and `records/` are a function of the configuration
alone: a run that was killed and resumed writes the same bytes. What depends on the clock is in `timings.jsonl`.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema([
    ("step", pa.int32()), ("update", pa.int32()), ("staleness", pa.int32()), ("index", pa.int64()),
    ("task", pa.string()), ("length", pa.int32()), ("truncated", pa.bool_()), ("reward", pa.float32()),
    ("advantage", pa.float32()), ("log_ratio", pa.float64()), ("accepted", pa.float32()),
    ("difficulty", pa.float32()), ("attributes", pa.string()),
])  # fmt: skip

FILES = ("metrics", "timings", "evaluations", "samples", "cosine")


class Records:
    """The files of a run's folder."""

    def __init__(self, folder: Path, keep_rows: bool) -> None:
        self.folder = folder
        self.keep_rows = keep_rows
        folder.mkdir(parents=True, exist_ok=True)

    def append(self, name: str, row: dict[str, Any]) -> None:
        """One line of `name`.jsonl, on disk when this returns."""
        with open(self.folder / f"{name}.jsonl", "a", encoding="utf-8", errors="surrogatepass") as file:
            file.write(json.dumps(_plain(row), ensure_ascii=True) + "\n")

    def rows(self, step: int, columns: dict[str, list[Any]]) -> None:
        """The per-sequence rows of a step."""
        if self.keep_rows and columns["step"]:
            path = self.folder / "records" / f"step-{step:06d}.parquet"
            path.parent.mkdir(exist_ok=True)
            scratch = path.with_suffix(".writing")
            pq.write_table(pa.table(columns, schema=SCHEMA), scratch)
            scratch.replace(path)

    def cut(self, step: int) -> None:
        """Forget what was written after `step`, so that a resumed run writes it again."""
        for name in FILES:
            path = self.folder / f"{name}.jsonl"
            if path.is_file():
                lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
                kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step]
                scratch = path.with_suffix(".writing")
                scratch.write_text("".join(kept), encoding="utf-8")
                scratch.replace(path)
        for path in (self.folder / "records").glob("step-*"):
            if path.suffix == ".writing" or int(path.stem.removeprefix("step-")) > step:
                path.unlink()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file; none if there is no such file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def _plain(value: Any) -> Any:
    """Numbers that JSON can hold: NaN and inf become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
