"""The types of values in text: what a cell of CSV or a value of JSON holds, and how it is named in a sentence."""

from __future__ import annotations

import json
import math
from typing import Any

import polars as pl

MOST = 1 << 53  # larger whole numbers are written as floats


def plain_value(value: Any) -> Any:
    """A value of JSON that every reader takes: NaN and infinite numbers are null."""
    if isinstance(value, dict):
        return {key: plain_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain_value(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return None if not finite(value) else value if abs(value) < MOST else float(value)
    return value


def finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number with hundreds of digits
        return False


def joined(one: pl.DataType, other: pl.DataType) -> pl.DataType:
    """The type of a column that holds values of both: the first that is known, or text for scalars that differ."""
    if one == pl.Null() or (one == pl.List(pl.Null()) and other != pl.Null()):
        return other
    if pl.String() in (one, other) and isinstance(other if one == pl.String() else one, pl.List):
        return pl.Object()  # texts and lists of messages
    scalars = (pl.Float64(), pl.Boolean(), pl.String())
    return pl.String() if one != other and one in scalars and other in scalars else one


def floats(kind: pl.DataType) -> pl.DataType:
    if isinstance(kind, pl.List):
        return pl.List(floats(kind.inner))  # type: ignore[arg-type]
    return pl.Float64() if kind.is_numeric() else kind


def kind_of(value: Any, text: bool) -> pl.DataType:
    """The type of a value; `text` if it is the text of a number or words, as in CSV."""
    if text:
        if value is None or value == "":
            return pl.Null()
        if value.startswith("["):
            return _list_kind(value)
        try:
            float(value)
        except ValueError:
            return pl.String()
        return pl.Float64()
    if value is None:
        return pl.Null()
    if isinstance(value, bool):
        return pl.Boolean()
    if isinstance(value, int | float):
        return pl.Float64()
    if isinstance(value, list):
        kinds = (kind_of(item, False) for item in value if item is not None)
        first = next(kinds, pl.Null())
        if first == pl.Object():  # a message may lack its content: a call of a tool
            first = next((kind for kind in kinds if isinstance(kind, pl.Struct)), first)
        return pl.List(first)
    if isinstance(value, dict) and isinstance(value.get("content"), str | None) and "content" in value:  # a message
        return pl.Struct({"content": pl.String()})
    return pl.String() if isinstance(value, str) else pl.Object()


def _list_kind(text: str) -> pl.DataType:
    """Of a list of numbers in a cell of CSV, as pandas writes it; other text in brackets is text."""
    try:
        kind = kind_of(json.loads(text), False)
    except (ValueError, RecursionError):
        return pl.String()
    return kind if kind in (pl.List(pl.Float64()), pl.List(pl.Null())) else pl.String()


def needed(kind: pl.DataType) -> str:
    if isinstance(kind, pl.List):
        return "a list of numbers"
    return "true or false" if kind == pl.Boolean() else "text" if kind == pl.String() else "a number"


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
