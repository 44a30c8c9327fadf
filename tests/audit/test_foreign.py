"""Tables nobody planned for: each is audited as the plain one, or stopped with one sentence that names what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fspo
from helpers.processes import Command
from helpers.simulated_answers import answers, token_answers

FRAME = answers(300).select("length", "log_ratio", "advantage", "accepted")
ROWS = FRAME.to_dicts()
LINES = FRAME.write_ndjson()
CSV = FRAME.write_csv()
HEAD, *BODY = CSV.splitlines(keepends=True)


def figures(found: fspo.audits.Audit) -> list[float]:
    """What must not differ, up to the last digits."""
    band = found.recommendation
    assert band is not None
    assert found.law is not None
    values = (found.rows, found.law.exponent, found.law.mu, band.c_low, band.c_high, *found.law.interval)
    return [*values, found.own.lre if found.own else 0.0]


EXPECTED = pytest.approx(figures(fspo.audit(FRAME)), rel=1e-5)
TOKENS = token_answers(300)
EXPECTED_TOKENS = pytest.approx(figures(fspo.audit(TOKENS)), rel=1e-5)


def lines(*changes: tuple[int, dict[str, Any]]) -> str:
    changed = dict(changes)
    return "".join(json.dumps(row | changed.get(k, {})) + "\n" for k, row in enumerate(ROWS))


# --- text that polars cannot scan as it is ---------------------------------------------------------------------------

TEXTS: dict[str, tuple[str, bytes | str]] = {
    "spaces": ("a.csv", CSV.replace(",", ", ")),
    "decimal commas": ("a.csv", CSV.replace(",", ";").replace(".", ",")),
    "pipes": ("a.csv", CSV.replace(",", "|")),
    "blank lines inside": ("a.csv", HEAD + BODY[0] + "\n \n" + "".join(BODY[1:])),
    "blank lines first": ("a.csv", "\n\n" + CSV),
    "old Mac": ("a.csv", CSV.replace("\n", "\r")),
    "UTF-16": ("a.csv", CSV.encode("utf-16")),
    "UTF-16 lines": ("a.jsonl", LINES.encode("utf-16")),
    "Latin-1": ("a.csv", FRAME.with_columns(prompt=pl.lit("é")).write_csv().encode("latin-1")),
    "long texts": (
        "a.csv",
        FRAME.with_columns(prompt=pl.lit("x").repeat_by(140_000 * (pl.int_range(300) == 7)).list.join("")).write_csv(),
    ),
    "blank lines in texts": ("a.csv", FRAME.with_columns(prompt=pl.lit("a\n\nb")).write_csv()),
    "NaN elsewhere": ("a.jsonl", lines((7, {"grad_norm": float("nan")}), (9, {"lr": float("inf")}))),
    "huge integer elsewhere": ("a.jsonl", lines((7, {"seed": 10**400}))),
    "a list that says lines": ("a.jsonl", json.dumps(ROWS)),
    "a name with brackets": ("a[1].jsonl", LINES),
    "flags and numbers": ("a.jsonl", lines(*((k, {"accepted": ROWS[k]["accepted"] == 1}) for k in range(0, 300, 2)))),
}


@pytest.mark.parametrize("case", TEXTS)
def test_untidy_text(tmp_path: Path, case: str) -> None:
    name, text = TEXTS[case]
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    assert figures(fspo.audit(tmp_path / name)) == EXPECTED


def test_a_late_column_beside_nan(tmp_path: Path) -> None:
    rows = [row | {"x": float("nan")} for row in ROWS * 4]
    for row in rows[:1100]:
        row.pop("advantage")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "1,100 rows have no advantage" in str(fspo.audit(tmp_path / "a.jsonl"))


def test_lists_in_cells_of_csv(tmp_path: Path) -> None:
    text = TOKENS.with_columns(
        pl.Series(name, [json.dumps(row) for row in TOKENS[name].to_list()]) for name in ("logprobs", "old_logprobs")
    )
    text.write_csv(tmp_path / "a.csv")
    assert figures(fspo.audit(tmp_path / "a.csv")) == EXPECTED_TOKENS


def test_text_keeps_its_spaces(tmp_path: Path) -> None:
    """Its length in characters must not depend on how the file was read."""
    frame = pl.DataFrame({"completion": ["  a\n\nb  "] * 60, "reward": [1.0] * 60})
    frame.write_csv(tmp_path / "a.csv")
    assert fspo.audit(tmp_path / "a.csv").lengths[0].label == fspo.audit(frame).lengths[0].label == "8"


WRONG: dict[str, tuple[str, bytes | str, str]] = {
    "two columns of one name": ("a.csv", "length,length\n1,2\n", "has two columns named 'length': rename one"),
    "JSON in CSV": ("a.csv", LINES, "holds JSON where its name says CSV: name it .jsonl"),
    "Parquet in CSV": ("a.csv", b"PAR1 and more", "is a Parquet file: name it .parquet"),
    "gzip in lines": ("a.jsonl", b"\x1f\x8b\x08 and more", "is compressed: name it .gz"),
    "huge integer": ("a.jsonl", lines((7, {"length": 10**400})), "row 8, column 'length' is 10000"),
    "huge integer in a list": (
        "a.jsonl", f'{{"logprobs": [1, {10**400}], "old_logprobs": [1, 2]}}\n', "row 1, column 'logprobs' holds 10000",
    ),
    "parts of messages": (
        "a.jsonl",
        '{"completion": [{"role": "assistant", "content": [{"type": "text", "text": "x"}]}]}\n',
        "column 'completion' holds lists of objects, which cannot be the text",
    ),
    "texts and messages": (
        "a.jsonl", '{"completion": "x"}\n{"completion": [{"content": "x"}]}\n', "'completion' holds objects",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_text(tmp_path: Path, case: str) -> None:
    name, text, sentence = WRONG[case]
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
        fspo.audit(tmp_path / name)
    assert sentence in str(error.value)


# --- types -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pl.Decimal(20, 10), pl.Float32, pl.String], ids=str)
def test_types_of_log_ratios(kind: Any) -> None:
    assert figures(fspo.audit(FRAME.with_columns(pl.col("log_ratio").cast(kind)))) == EXPECTED


@pytest.mark.parametrize("kind", [pl.UInt16, pl.Int128, pl.Decimal(10, 0), pl.Float32, pl.Categorical], ids=str)
def test_types_of_lengths(kind: Any) -> None:
    text = pl.col("length").cast(pl.String) if kind == pl.Categorical else pl.col("length")
    assert figures(fspo.audit(FRAME.with_columns(text.cast(kind)))) == EXPECTED


def test_small_integers_do_not_overflow() -> None:
    whole = FRAME.with_columns((pl.col("log_ratio") * 100).round().clip(-120, 120).cast(pl.Int8))
    wide = whole.with_columns(pl.col("log_ratio").cast(pl.Float64))
    assert figures(fspo.audit(whole)) == pytest.approx(figures(fspo.audit(wide)))


def padded(width: int = 70) -> dict[str, Any]:
    """Arrays (rows, tokens) as trainers hold them, and the mask."""
    sizes = TOKENS["logprobs"].list.len().to_numpy()
    arrays: dict[str, Any] = {"mask": (np.arange(width) < sizes[:, None]).astype(int)}
    for name in ("logprobs", "old_logprobs"):
        arrays[name] = np.array([row + [0.0] * (width - len(row)) for row in TOKENS[name].to_list()])
    return arrays | {"advantages": TOKENS["advantage"].to_numpy()[:, None] * arrays["mask"]}


def test_arrays_of_one_size(tmp_path: Path) -> None:
    arrays = padded()
    assert figures(fspo.audit(arrays)) == EXPECTED_TOKENS
    table = pa.table(
        {name: pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), 70) for name, values in arrays.items()}
    )
    pq.write_table(table, tmp_path / "a[0].parquet")
    assert figures(fspo.audit(tmp_path / "a[0].parquet")) == EXPECTED_TOKENS


@pytest.mark.parametrize("pad", [0.0, 1.0, -100.0])
@pytest.mark.parametrize("left", [False, True], ids=["at the end", "at the start"])
def test_padding_of_any_value_is_noticed(pad: float, left: bool) -> None:
    arrays = padded()
    inside = arrays.pop("mask") > 0
    for name in ("logprobs", "old_logprobs"):
        arrays[name] = np.where(inside, arrays[name], pad)[:, :: -1 if left else 1]
    with pytest.raises(
        ValueError, match=r"column 'logprobs' (ends in|starts with) .* look.* like padding: give --mask"
    ):
        fspo.audit(arrays)


def test_certain_first_tokens_are_no_padding() -> None:
    """A template that the model has learnt gives every answer the same certain start."""
    starts = {name: [[0.0] * 3 + row for row in TOKENS[name].to_list()] for name in ("logprobs", "old_logprobs")}
    frame = TOKENS.with_columns(pl.Series(name, rows) for name, rows in starts.items())
    assert fspo.audit(frame).rows == 300


def test_huge_log_ratios() -> None:
    found = fspo.audit(FRAME.with_columns(pl.col("log_ratio") * 1e6))
    assert figures(found)[1] == pytest.approx(EXPECTED.expected[1])
    assert "its range would be infinite" in str(found)


def test_no_spread_is_no_band() -> None:
    found = fspo.audit(FRAME.with_columns(log_ratio=-0.01 * pl.col("length")), clip_rate=0.1)
    assert (found.law, found.recommendation) == (None, None)
    assert "S is exactly mu L everywhere" in str(found)


def test_characters_give_no_band() -> None:
    text = FRAME.with_columns(completion=pl.Series(["x" * n for n in FRAME["length"]])).drop("length")
    found = fspo.audit(text)
    assert found.recommendation is None
    assert "lengths are characters of the text, and trainers count tokens" in str(found)


def test_a_column_that_cannot_have_its_role_is_named() -> None:
    with pytest.raises(ValueError, match="column 'length' holds boolean, which cannot be the length"):
        fspo.audit(FRAME.with_columns(length=pl.lit(True)))
    found = fspo.audit(FRAME.with_columns(advantage=pl.lit(["a"]), reward=pl.struct("accepted")))
    assert "column 'advantage' holds lists of text, which cannot be the advantage: it is left out" in str(found)
    assert "column 'reward' holds objects, which cannot be the reward: it is left out" in str(found)


# --- --by, --bins ----------------------------------------------------------------------------------------------------


def test_by_over_what_cannot_be_compared() -> None:
    many = FRAME.with_columns(prompt=pl.int_range(300).cast(pl.String), tags=pl.lit([1, 2]))
    with pytest.raises(ValueError, match="column 'prompt' has 300 different values: --by shows fairness over at most"):
        fspo.audit(many, by="prompt")
    with pytest.raises(ValueError, match="column 'tags' holds lists or objects: --by needs words or numbers"):
        fspo.audit(many, by="tags")
    with pytest.raises(ValueError, match="bins = 1000000000 must be at least 1 and at most 1000"):
        fspo.audit(FRAME, bins=10**9)


# --- shards ----------------------------------------------------------------------------------------------------------

SHARDS: dict[str, tuple[Callable[[pl.DataFrame], pl.DataFrame], dict[str, Any]]] = {
    "case": (lambda f: f.rename({"length": "Length", "log_ratio": "LOG_RATIO"}), {}),
    "other names": (lambda f: f.rename({"length": "response_length", "advantage": "advantages"}), {}),
    "order": (lambda f: f.select(reversed(f.columns)), {}),
    "types": (lambda f: f.with_columns(pl.col("length").cast(pl.String), pl.col("accepted") == 1), {}),
    "words in by": (lambda f: f.with_columns(kind=pl.lit("b")), {"by": "kind"}),
}


@pytest.mark.parametrize("case", SHARDS)
@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_shards_that_differ_in_form(tmp_path: Path, case: str, first: bool) -> None:
    change, options = SHARDS[case]
    frame = FRAME.with_columns(kind=pl.lit(1)) if options else FRAME
    parts = [frame.head(150), frame.tail(150)]
    parts[0 if first else 1] = change(parts[0 if first else 1])
    for k, part in enumerate(parts):
        part.write_parquet(tmp_path / f"{k}.parquet")
    assert figures(fspo.audit(tmp_path, **options)) == EXPECTED


@pytest.mark.parametrize("first", [True, False], ids=["lists first", "sums first"])
def test_lists_and_sums(tmp_path: Path, first: bool) -> None:
    S = pl.col("logprobs").list.sum() - pl.col("old_logprobs").list.sum()
    sums = TOKENS.select("advantage", length=pl.col("logprobs").list.len(), log_ratio=S)
    TOKENS.head(150).write_parquet(tmp_path / f"{0 if first else 2}.parquet")
    sums.tail(150).write_parquet(tmp_path / "1.parquet")
    found = fspo.audit(tmp_path)
    assert figures(found) == EXPECTED_TOKENS
    assert "Some files have no lists of log-ratios: methods that clip tokens are not compared." in found.notes


def test_files_without_a_table_are_left_out(tmp_path: Path) -> None:
    FRAME.write_csv(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("")
    (tmp_path / "c.csv").write_text(HEAD)
    (tmp_path / "dataset_info.json").write_text("{}")
    found = fspo.audit([tmp_path, tmp_path / "a.csv"])  # a file that is given twice is read once
    assert figures(found) == EXPECTED
    assert sum("It was left out." in note for note in found.notes) == 3


def test_output_that_cannot_be_written(command: Command, tmp_path: Path) -> None:
    FRAME.write_csv(tmp_path / "a.csv")
    for option in ("--html", "--json"):
        done = command("audit", str(tmp_path / "a.csv"), option, str(tmp_path), check=False)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert "error: " in done.stderr
        assert str(tmp_path) in done.stderr
