"""Replacing files atomically; reading JSON lines and YAML."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


@contextmanager
def replacing(path: Path, *, flush: bool = False) -> Iterator[Path]:
    """A scratch path beside `path`, renamed to `path` when the block ends without an error.

    A reader sees the old file or the new one, never half of it. `flush` puts it on disk first.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.writing")
    scratch.unlink(missing_ok=True)  # writing would follow a symbolic link of that name
    try:
        yield scratch
        if flush:
            sync(scratch)
        os.replace(scratch, path)
    except OSError as error:
        if error.filename in (None, str(scratch)):  # a full disk names no file
            error.filename = str(path)
        raise
    finally:
        scratch.unlink(missing_ok=True)


def replace_file(path: str | Path, content: str | bytes) -> Path:
    """Write a whole file at once."""
    path = Path(path)
    with replacing(path) as scratch:
        scratch.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return path


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class BadLine:
    """A line that is not a JSON object."""

    number: int  # from 1
    problem: str  # follows "line 7 of FILE", as in "is not JSON"


def json_lines(path: Path) -> Iterator[dict[str, Any] | BadLine]:
    """The objects of a JSON-lines file in order, and what is wrong with a bad line; blank lines are skipped."""
    with path.open(encoding="utf-8-sig", errors="replace") as lines:
        yield from json_objects(lines)


def json_objects(
    lines: Iterable[str], constant: Callable[[str], Any] | None = None
) -> Iterator[dict[str, Any] | BadLine]:
    """The same of lines; `constant` is called for NaN and infinity, which Python's own JSON writes."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line, parse_constant=constant)
        except (ValueError, RecursionError) as error:
            yield BadLine(number, "is not JSON" + f": {error}" * (type(error) is ValueError))
            continue
        yield value if isinstance(value, dict) else BadLine(number, "is not a JSON object")


YAML_SIZE = 200_000  # the most characters of a YAML text


def yaml_value(text: str) -> Any:
    """The value of a YAML text, without tags that name code. What cannot be read is a ValueError of one line."""
    if len(text) > YAML_SIZE:
        raise ValueError(f"it has more than {YAML_SIZE:,} characters")
    try:
        return yaml.safe_load(text)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise ValueError(" ".join(str(error).split())) from None


def json_text(value: Any, *, indent: int | None = None) -> str:
    """JSON in ASCII; NaN and infinite numbers, which JSON cannot hold, become null."""
    return json.dumps(plain(value), ensure_ascii=True, indent=indent)


def plain(value: Any) -> Any:
    """A value that JSON can hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
