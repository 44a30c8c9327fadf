"""Tables as trainers write them: formats, spellings, masks and per-token advantages, in shards that differ."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import fspo
from helpers.simulated_answers import answers, token_answers


def figures(found: fspo.audits.Audit) -> dict[str, Any]:
    return {key: value for key, value in found.to_dict().items() if key not in ("name", "files")}


def same(one: fspo.audits.Audit, other: fspo.audits.Audit) -> bool:
    """Up to the last digits: text holds numbers in decimals."""
    return json.dumps(_rounded(figures(one))) == json.dumps(_rounded(figures(other)))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


# --- formats --------------------------------------------------------------------------------------------------------


def _zstd(path: Path, text: bytes) -> None:
    with pa.output_stream(str(path), compression="zstd") as file:
        file.write(text)


def _gzip(path: Path, text: bytes) -> None:
    path.write_bytes(gzip.compress(text))


def _with_mark(path: Path, text: bytes) -> None:
    path.write_bytes(b"\xef\xbb\xbf" + text)


def _with_blank_lines(path: Path, text: bytes) -> None:
    path.write_bytes(text + b"\n\n  \n\r\n")


FRAME = answers(500).select("length", "log_ratio", "advantage", "accepted")
LINES = FRAME.write_ndjson().encode()
CSV = FRAME.write_csv().encode()
FORMATS: list[tuple[str, bytes, Callable[[Path, bytes], Any]]] = [
    ("a.jsonl.gz", LINES, _gzip),
    ("a.jsonl.zst", LINES, _zstd),
    ("a.csv.gz", CSV, _gzip),
    ("a.csv.zst", CSV, _zstd),
    ("a.json.gz", json.dumps(FRAME.to_dicts()).encode(), _gzip),
    ("a.tsv", FRAME.write_csv(separator="\t").encode(), Path.write_bytes),
    ("a.tsv.gz", FRAME.write_csv(separator="\t").encode(), _gzip),
    ("a.csv", FRAME.write_csv(separator=";").encode(), Path.write_bytes),
    ("b.csv", FRAME.write_csv(separator="\t").encode(), Path.write_bytes),
    ("a.json", json.dumps(FRAME.to_dicts(), indent=1).encode(), Path.write_bytes),
    ("lines.json", LINES, Path.write_bytes),
    ("mark.json", json.dumps(FRAME.to_dicts()).encode(), _with_mark),
    ("mark.jsonl", LINES, _with_mark),
    ("mark.csv", CSV, _with_mark),
    ("blank.jsonl", LINES, _with_blank_lines),
    ("blank.csv", CSV, _with_blank_lines),
    ("windows.csv", CSV.replace(b"\n", b"\r\n"), Path.write_bytes),
    ("UPPER.CSV", CSV, Path.write_bytes),
]


@pytest.mark.parametrize(("name", "text", "write"), FORMATS, ids=[name for name, _, _ in FORMATS])
def test_formats(tmp_path: Path, name: str, text: bytes, write: Callable[[Path, bytes], Any]) -> None:
    write(tmp_path / name, text)
    found = fspo.audit(tmp_path / name)
    assert same(found, fspo.audit(FRAME))
    assert found.files == [str(tmp_path / name)]
    assert same(fspo.audit(tmp_path), found)  # the folder knows the ending too


def test_a_bad_row_of_a_copy_is_named_by_the_file(tmp_path: Path) -> None:
    _gzip(tmp_path / "a.jsonl.gz", LINES + b'{"length": 0, "log_ratio": 1, "advantage": 1, "accepted": 1}\n')
    with pytest.raises(ValueError, match=r"a\.jsonl\.gz, row 501, column 'length' is 0"):
        fspo.audit(tmp_path / "a.jsonl.gz")
    (tmp_path / "b.csv.gz").write_bytes(b"not compressed at all")
    with pytest.raises(ValueError, match=r"^\S+b\.csv\.gz cannot be read: [^\n]+$"):
        fspo.audit(tmp_path / "b.csv.gz")
    (tmp_path / "c.json").write_text("[1, 2]")
    with pytest.raises(ValueError, match=r"c\.json, row 1 is not a JSON object"):
        fspo.audit(tmp_path / "c.json")


def test_names_without_regard_to_case() -> None:
    upper = FRAME.rename({name: name.upper() for name in FRAME.columns})
    assert same(fspo.audit(upper), fspo.audit(FRAME))
    mine = FRAME.rename({"length": "N_Tok", "log_ratio": "S"})
    assert same(fspo.audit(mine, columns={"length": "n_tok", "log_ratio": "s"}), fspo.audit(FRAME))
    twice = FRAME.with_columns(LENGTH=pl.lit(3))
    assert same(fspo.audit(twice), fspo.audit(FRAME))


@pytest.mark.parametrize(("yes", "no"), [("True", "False"), ("yes", "no"), ("1", "0"), ("1.0", "0.0"), (" TRUE", "f")])
@pytest.mark.parametrize("form", ["frame", "csv", "jsonl"])
def test_flags_and_numbers_as_text(tmp_path: Path, yes: str, no: str, form: str) -> None:
    text = FRAME.with_columns(
        pl.col("length").cast(pl.String),
        accepted=pl.when(pl.col("accepted") == 1).then(pl.lit(yes)).otherwise(pl.lit(no)),
    )
    if form == "csv":
        text.write_csv(tmp_path / "a.csv")
    elif form == "jsonl":
        text.write_ndjson(tmp_path / "a.jsonl")
    assert same(fspo.audit(text if form == "frame" else tmp_path / f"a.{form}"), fspo.audit(FRAME))


def test_words_that_are_no_flags() -> None:
    bad = FRAME.with_columns(accepted=pl.when(pl.int_range(500) == 6).then(pl.lit("maybe")).otherwise(pl.lit("yes")))
    with pytest.raises(ValueError, match=r"row 7, column 'accepted' is 'maybe' where true or false is needed"):
        fspo.audit(bad)


def test_chat_completions(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"completion": [{"role": "assistant", "content": "x" * (k % 90)}], "reward": float(k % 2), "step": k // 150}
        for k in range(300)
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plain = [row | {"completion": row["completion"][0]["content"]} for row in rows]
    expected = fspo.audit(pl.DataFrame(plain))
    assert expected.unit == "characters"
    for data in (tmp_path / "a.jsonl", pl.DataFrame(rows)):
        assert same(fspo.audit(data), expected)


# --- per-token columns ----------------------------------------------------------------------------------------------


def padded(frame: pl.DataFrame, pad: float = 0.0) -> pl.DataFrame:
    """Lists filled up to the longest, and a mask."""
    most = int(frame["logprobs"].list.len().max())  # type: ignore[arg-type]
    sizes = frame["logprobs"].list.len().to_list()
    lists = {
        name: [row + [pad] * (most - len(row)) for row in frame[name].to_list()]
        for name in ("logprobs", "old_logprobs")
    }
    return frame.with_columns(
        **{name: pl.Series(rows) for name, rows in lists.items()},
        response_mask=pl.Series([[1] * k + [0] * (most - k) for k in sizes]),
    )


@pytest.mark.parametrize("name", ["mask", "response_mask", "completion_mask", "loss_mask", "attention_mask", "mine"])
@pytest.mark.parametrize("kind", [pl.Int64, pl.Boolean, pl.Float32])
def test_masks(name: str, kind: Any) -> None:
    frame = token_answers(400)
    table = padded(frame, pad=-7.0).rename({"response_mask": name}).with_columns(pl.col(name).cast(pl.List(kind)))
    assert same(fspo.audit(table, columns={"mask": name} if name == "mine" else {}), fspo.audit(frame))


def test_a_mask_may_leave_out_tokens_in_the_middle() -> None:
    """As of a tool's answer between two of the model's."""
    frame = token_answers(400)
    inserted = [
        pl.concat_list(pl.col(c).list.head(1), pl.lit([9.0]), pl.col(c).list.tail(-1 + pl.col(c).list.len()))
        for c in ("logprobs", "old_logprobs")
    ]
    mask = [[1, 0] + [1] * (k - 1) for k in frame["logprobs"].list.len().to_list()]
    table = frame.with_columns(inserted).with_columns(loss_mask=pl.Series(mask))
    assert same(fspo.audit(table), fspo.audit(frame))


def test_a_mask_that_does_not_fit() -> None:
    frame = token_answers(50)
    with pytest.raises(ValueError, match=r"row 1, column 'mask' holds 2 numbers where the log-probs are"):
        fspo.audit(frame.with_columns(mask=pl.lit([1, 1])))
    assert same(fspo.audit(frame.with_columns(attention_mask=pl.lit([1, 1]))), fspo.audit(frame))  # of the prompt too
    none = frame.with_columns(mask=pl.Series([[0] * k for k in frame["logprobs"].list.len().to_list()]))
    with pytest.raises(ValueError, match="has no trained token in its mask"):
        fspo.audit(none)


def test_padding_without_a_mask_is_not_counted() -> None:
    frame = token_answers(400)
    table = padded(frame).drop("response_mask")
    sentence = r"row \d+, column 'logprobs' ends in zeros, which look like padding: give --mask COLUMN or --length"
    with pytest.raises(ValueError, match=sentence):
        fspo.audit(table)
    ratio = table.select(
        "advantage",
        log_ratio=pl.Series(
            [[a - b for a, b in zip(*row, strict=True)] for row in table.select("logprobs", "old_logprobs").iter_rows()]
        ),
    )
    with pytest.raises(ValueError, match="column 'log_ratio' ends in zeros"):
        fspo.audit(ratio)
    to_eight = [
        [row + [0.0] * (-len(row) % 8) for row in frame[name].to_list()] for name in ("logprobs", "old_logprobs")
    ]
    with pytest.raises(ValueError, match=sentence):
        fspo.audit({"logprobs": to_eight[0], "old_logprobs": to_eight[1]})
    lengths = table.with_columns(length=frame["logprobs"].list.len())
    assert same(fspo.audit(lengths), fspo.audit(frame))


def test_a_certain_last_token_is_no_padding() -> None:
    frame = token_answers(400)
    ends = frame.with_columns(pl.concat_list(pl.col(c), pl.lit([0.0])) for c in ("logprobs", "old_logprobs"))
    assert fspo.audit(ends).rows == 400


@pytest.mark.parametrize("form", ["exact", "padded", "masked"])
def test_advantages_per_token(form: str) -> None:
    frame = token_answers(400)
    sizes = frame["logprobs"].list.len().to_list()
    more = 0 if form == "exact" else 70
    lists = [[a] * k + [0.0] * (more and more - k) for a, k in zip(frame["advantage"], sizes, strict=True)]
    table = (padded(frame) if form == "masked" else frame).drop("advantage")
    if form == "masked":
        most = max(sizes)
        lists = [row[:most] for row in lists]
    found = fspo.audit(table.with_columns(advantages=pl.Series(lists)))
    assert same(found, fspo.audit(frame))
    sums = answers(400)
    constant = sums.drop("advantage").with_columns(
        advantages=pl.Series([[a] * k for a, k in zip(sums["advantage"], sums["length"], strict=True)])
    )
    assert same(fspo.audit(constant), fspo.audit(sums))


def test_advantages_that_differ_between_tokens() -> None:
    frame = token_answers(400)
    sizes = frame["logprobs"].list.len().to_list()
    ramps = [list(a + 0.01 * (np.arange(k) - k / 2)) for a, k in zip(frame["advantage"], sizes, strict=True)]
    means = frame.with_columns(advantage=pl.Series([float(np.mean(row)) for row in ramps]))
    found = fspo.audit(frame.drop("advantage").with_columns(advantages=pl.Series(ramps)))
    assert "400 answers have advantages that differ between tokens: their mean over the trained tokens" in str(found)
    assert found.own == fspo.audit(means).own
    assert found.recommendation is not None
    assert found.recommendation.c_low == pytest.approx(fspo.audit(means).recommendation.c_low)  # type: ignore[union-attr]
    short = frame.drop("advantage").with_columns(advantages=pl.lit([1.0, 2.0]))
    with pytest.raises(ValueError, match="column 'advantages' holds 2 numbers where the answer has"):
        fspo.audit(short)


# --- rows and files that differ -------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["number", "list"])
def test_a_column_that_appears_late(tmp_path: Path, value: str) -> None:
    rows = answers(3000).select("length", "log_ratio", "advantage", "reward").to_dicts()
    for k, row in enumerate(rows):
        if k < 1500:
            del row["advantage"]
        elif value == "list":
            row["advantage"] = [row["advantage"]] * row["length"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = fspo.audit(tmp_path / "a.jsonl", clip_rate=0.1)
    assert "There are no advantages" not in str(found)
    assert "1,500 rows have no advantage: they are left out of clip rates." in found.notes
    assert found.recommendation is not None
    assert found.recommendation.rows == 1500


COLUMNS = ("advantage", "accepted", "reward", "truncated", "step", "task", "log_ratio", "length", "extra")


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("first", [True, False], ids=["first lacks", "later lacks"])
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_shards_that_differ(tmp_path: Path, column: str, first: bool, kind: str) -> None:
    """Either order works with a note, or gives one sentence."""
    frame = answers(1200, steps=10).with_columns(extra=pl.lit(1))
    parts = [frame.head(600), frame.tail(600)]
    parts[0 if first else 1] = parts[0 if first else 1].drop(column)
    for k, part in enumerate(parts):
        path = tmp_path / f"{k}.{kind}"
        part.write_parquet(path) if kind == "parquet" else part.write_ndjson(path)
    if column in ("accepted", "log_ratio", "length"):
        with pytest.raises(ValueError, match=rf"^[^\n]+ has no column '{column}', which other files have$"):
            fspo.audit(tmp_path)
        return
    found = fspo.audit(tmp_path, clip_rate=0.1)
    assert found.rows == 1200
    said = {
        "advantage": "600 rows have no advantage: they are left out of clip rates.",
        "reward": "600 answers have no reward and are in no mean reward.",
        "truncated": "has no column 'truncated', so it is left out of the audit.",
        "step": "has no column 'step', so it is left out of the audit.",
    }
    assert said.get(column, "") in " ".join(found.notes)
