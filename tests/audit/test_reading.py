"""Tables as trainers write them are audited alike; anything else gets one sentence with the file, row and column."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import fspo
from helpers.processes import Command
from helpers.simulated_answers import answers, token_answers


def figures(audit: fspo.audits.Audit) -> Any:
    """All of them, up to the last digits: text holds numbers in decimals."""
    return _rounded({key: value for key, value in audit.to_dict().items() if key not in ("name", "files", "notes")})


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, str):
        return value if len(value) < 40 else value[:40]  # settings hold digits
    return float(f"{value:.5g}") if isinstance(value, float) else value


FRAME = answers(500).select("length", "log_ratio", "advantage", "accepted")
TOKENS = token_answers(400)
EXPECTED, EXPECTED_TOKENS = figures(fspo.audit(FRAME)), figures(fspo.audit(TOKENS))
LINES, CSV = FRAME.write_ndjson().encode(), FRAME.write_csv().encode()
SIZES = TOKENS["logprobs"].list.len().to_list()


# --- formats --------------------------------------------------------------------------------------------------------


FORMATS = {
    "a.jsonl.zst": LINES, "a.csv.gz": CSV, "a.json.gz": json.dumps(FRAME.to_dicts()).encode(),
    "a.tsv": FRAME.write_csv(separator="\t").encode(), "lines.json": LINES, "mark.csv": b"\xef\xbb\xbf" + CSV,
    "UPPER.CSV": CSV, "a[1].jsonl": LINES,
    "head.csv": FRAME.with_columns(pl.lit(1).alias("x" * 140_000)).write_csv().encode(),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_formats(tmp_path: Path, name: str) -> None:
    with pa.output_stream(str(tmp_path / name)) as file:  # compressed as the ending says
        file.write(FORMATS[name])
    audit = fspo.audit(tmp_path / name)
    assert figures(audit) == EXPECTED
    assert audit.files == [str(tmp_path / name)]
    assert figures(fspo.audit(tmp_path)) == EXPECTED  # the folder knows the ending too


def test_every_form_gives_the_same(tmp_path: Path) -> None:
    frame = answers(3000)
    frame.write_parquet(tmp_path / "one.parquet", row_group_size=250)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "dataset_info.json").write_text("{}")  # beside tables, a description is not one
    for k, part in enumerate(frame.iter_slices(700)):
        part.write_parquet(tmp_path / "parts" / f"{k}.parquet")
    text = frame.with_columns(pl.col("length").cast(pl.String), accepted=pl.col("accepted") == 1)
    text.to_pandas().to_csv(tmp_path / "pandas.csv", index=False)  # its booleans are True and False
    text.write_ndjson(tmp_path / "flags.jsonl")
    whole = figures(fspo.audit(frame))
    tensors = {c: torch.tensor(frame[c].to_list(), requires_grad=c == "log_ratio") for c in frame.columns[:6]}
    for data in (
        frame.lazy(), frame.to_arrow(), frame.to_dict(as_series=False), tmp_path / "one.parquet", tmp_path / "parts",
        str(tmp_path / "parts" / "*.parquet"), sorted((tmp_path / "parts").glob("*.parquet")), text,
        tmp_path / "pandas.csv", tmp_path / "flags.jsonl", 2 * [tmp_path / "one.parquet"],  # given twice, counted once
    ):  # fmt: skip
        assert figures(fspo.audit(data)) == whole, data
    assert figures(fspo.audit(tensors)) == figures(fspo.audit(frame.select(frame.columns[:6])))


def test_sums_and_tokens_agree() -> None:
    new, old = (TOKENS[name].list.sum() for name in ("logprobs", "old_logprobs"))
    sums = TOKENS.select("advantage", length=pl.col("logprobs").list.len(), new=new, old=old)
    assert figures(fspo.audit(sums, columns={"logprobs": "new", "old_logprobs": "old"})) == EXPECTED_TOKENS


# --- one sentence ----------------------------------------------------------------------------------------------------

SMALL = "length,log_ratio,accepted\n10,0.1,1\n12,0.2,0\n"
LINE = '{"length": 10, "log_ratio": 0.1, "accepted": true}\n'
WRONG: list[tuple[str, bytes | str, str]] = [
    ("a.csv", SMALL + "x,0.1,1\n", ", row 3, column 'length' is 'x' where a number is needed"),
    ("a.csv", SMALL + "0,0.1,1\n", ", row 3, column 'length' is 0 where a positive whole number is needed"),
    ("a.csv", SMALL + "2.5,0.1,1\n", ", row 3, column 'length' is 2.5 where a positive whole number"),
    ("a.csv", SMALL + "5,,1\n", ", row 3, column 'log_ratio' is empty"),
    ("a.csv", SMALL + "5,0.1,2\n", ", row 3, column 'accepted' is 2 where true, false or a share"),
    ("a.csv", SMALL + "5,0.1,1,7\n", " cannot be read as csv in UTF-8: "),
    ("a.csv", SMALL.replace(",", ";").replace(".", ","), " is separated by ';' where ',' is needed"),
    ("a.csv", SMALL.encode("utf-16"), " is UTF-16 text: convert it with iconv"),
    ("a.csv", SMALL.replace("12,", "é,").encode("latin-1"), " cannot be read as csv in UTF-8: "),
    ("a.csv", "length,log_ratio\n", " has no rows"),
    ("a.csv", "", " is empty"),
    ("a.csv", "size,log_ratio\n3,0.1\n", " has no length of the answers: give --length COLUMN; its columns: size"),
    ("a.csv.gz", b"not compressed at all", " cannot be read as csv"),
    ("a.jsonl", LINE + '{"length": 3, "log_ratio"\n', "line 2 of "),
    ("a.jsonl", LINE + "\n\n[1, 2]\n", "line 4 of "),
    ("a.jsonl", LINE + '{"length": 3, "log_ratio": NaN}\n', "is not JSON: it holds NaN, write null"),
    ("a.jsonl.gz", gzip.compress((LINE + '{"length": 3, "log_ratio"\n').encode()), "line 2 of "),
    ("a.jsonl", "\ufeff" + LINE, " begins with a byte order mark"),
    ("a.json", '{"length": [10, 12], "log_ratio": [0.1, 0.2]}', " is one JSON object: give a list of objects"),
    ("a.json", '{\n "length": {"0": 10}, "log_ratio": {"0": 0.1}\n}', " is one JSON object: give a list of objects"),
    ("a.jsonl", LINE + '{"log_ratio": 3}\n', ", row 2, column 'length' is empty"),
    ("a.jsonl", LINE + f'{{"length": 1{400 * "0"}}}\n', " cannot be read as jsonl"),
    ("a.jsonl", '{"completion": [{"content": [{"text": "x"}]}]}\n', " has no length of the answers"),
    ("a.jsonl", '{"logprobs": [0.1], "old_logprobs": [0.1]}\n{"logprobs": [], "old_logprobs": []}\n',
     ", row 2, column 'logprobs' is a list without numbers"),
    ("a.jsonl", '{"logprobs": [0.1, 1], "old_logprobs": [0.1]}\n',
     ", row 1, column 'old_logprobs' holds 1 numbers where the log-probs are 2"),
    ("a.jsonl", '{"logprobs": [1, 2], "old_logprobs": [0.1, 2], "length": 3}\n',
     ", row 1, column 'logprobs' holds 2 numbers, which is not the length: give --mask"),
    ("a.jsonl", '{"logprobs": [1, 2], "old_logprobs": 0.1}\n', " has log-probs as lists and as one number per answer"),
    ("a.jsonl", '{"output": "", "score": 0.0}\n', " has only empty answers"),
    ("a.parquet", "not parquet at all", " cannot be read"),
    ("a.txt", "length", " has an unknown ending: use one of"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "sentence"), WRONG, ids=range(len(WRONG)))
def test_wrong_files(tmp_path: Path, name: str, text: bytes | str, sentence: str) -> None:
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
        fspo.audit(tmp_path / name)
    assert sentence in str(error.value)
    assert str(tmp_path / name) in str(error.value)


ONE: dict[str, list[Any]] = {"length": [3, 4], "log_ratio": [0.1, 0.2]}
FRAMES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"log_ratio": [0.1, math.nan]}, {}, "the frame, row 2, column 'log_ratio' is nan"),
    ({"log_ratio": [0.1, 1e200]}, {}, "the frame, row 2, column 'log_ratio' is 1e+200"),
    ({"n": [[3], [4]]}, {"columns": {"length": "n"}}, "column 'n' holds List(Int64), which cannot be the length"),
    ({"length": [True, True]}, {}, "has no length of the answers"),
    ({}, {"columns": {"length": "lenght"}}, "no column 'lenght'"),
    ({}, {"columns": {"lenght": "length"}}, "no role 'lenght'; did you mean 'length'"),
    ({}, {"by": "tsk"}, "no column 'tsk'"),
    ({"x": [[1], [2]]}, {"by": "x"}, "column 'x' holds List(Int64): --by needs words or numbers"),
    ({"new": [0.1, 0.2]}, {"columns": {"logprobs": "new"}}, "give --old-logprobs NAME"),
    ({"by": [1.5, None]}, {"by": "by"}, "row 2, column 'by' is empty, NaN or infinite: fill it"),
    ({}, {"rule": "fspoo"}, "there is no objective 'fspoo'"),
    ({}, {"rule": "gspo:eps=1"}, "has no parameter 'eps'"),
    ({}, {"rule": "gspo:eps"}, "'eps' is not of the form parameter=value"),
    ({}, {"rule": "grpo"}, "the rule grpo looks at tokens"),
    ({}, {"rule": "helpers.custom_objective:Yours"}, "'helpers.custom_objective:Yours' cannot be loaded"),
    ({}, {"rule": "gspo", "mismatch": True}, "--rule applies to clipping"),
    ({}, {"clip_rate": 1.5}, "clip_rate = 1.5 must lie between 0 and 1"),
    ({}, {"bins": 0}, "bins = 0 must be at least 1"),
]


@pytest.mark.parametrize(("data", "options", "sentence"), FRAMES, ids=range(len(FRAMES)))
def test_wrong_frames(data: dict[str, Any], options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
        fspo.audit(pl.DataFrame(ONE | data, strict=False), **options)
    assert sentence in str(error.value)


def test_many_categories() -> None:
    with pytest.raises(ValueError, match="column 'prompt' has 500 different values: --by shows fairness over at most"):
        fspo.audit(FRAME.with_columns(prompt=pl.int_range(500).cast(pl.String)), by="prompt")
    objects = FRAME.with_columns(advantage=pl.lit(["a"]), reward=pl.struct("accepted"))
    assert "Without advantages" in str(fspo.audit(objects))


def damage(path: Path) -> None:
    """Change the pages of a Parquet file; its footer stays whole."""
    content = bytearray(path.read_bytes())
    content[4 : len(content) // 2] = bytes(b ^ 0x5A for b in content[4 : len(content) // 2])
    path.write_bytes(content)


def test_rows_and_damage_are_named_across_files(tmp_path: Path) -> None:
    frame = answers(2000)
    bad = frame.with_columns(length=pl.when(pl.int_range(2000) == 16).then(0).otherwise("length"))
    for k, part in enumerate((frame, frame, bad, frame)):
        part.write_parquet(tmp_path / f"{k}.parquet")
    with pytest.raises(ValueError, match=r"2\.parquet, row 17, column 'length' is 0"):
        fspo.audit(tmp_path)
    frame.drop("log_ratio").write_parquet(tmp_path / "2.parquet")
    with pytest.raises(ValueError, match=r"2\.parquet has no log_ratio, unlike other files: audit them separately"):
        fspo.audit(tmp_path)
    frame.write_parquet(tmp_path / "2.parquet")
    damage(tmp_path / "2.parquet")  # they are scanned together
    with pytest.raises(ValueError, match=r"0\.parquet or one of 3 more cannot be read as parquet"):
        fspo.audit(tmp_path)


def test_rows_without_a_forward_pass_count_in_the_number_of_a_bad_one(tmp_path: Path) -> None:
    """A run's rows of advantage 0 have no log-ratio and are left out."""
    at, frame = pl.int_range(40), answers(40).with_columns(step=1, update=0, off_policy=True, index=0)
    frame = frame.with_columns(
        advantage=pl.when(at < 20).then(0.0).otherwise(1.0), log_ratio=pl.when(at >= 20).then("log_ratio")
    )
    for k, bad in enumerate((-1, 30)):
        rows = frame.with_columns(length=pl.when(at == bad).then(0).otherwise("length"))
        rows.write_parquet(tmp_path / f"{k}.parquet")
    with pytest.raises(ValueError, match=r"1\.parquet, row 31, column 'length' is 0"):
        fspo.audit(tmp_path)


def test_the_command(command: Command, tmp_path: Path) -> None:
    FRAME.write_csv(tmp_path / "good.csv")
    (tmp_path / "empty").mkdir()
    cases = {
        (str(tmp_path / "none*.csv"),): "there is no file",
        (str(tmp_path / "empty"),): "has neither rows of a run nor tables",
        (str(tmp_path / "good.csv"), "--html", str(tmp_path)): str(tmp_path),
    }
    for arguments, sentence in cases.items():
        done = command("audit", *arguments, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: ")
        assert sentence in done.stderr
        assert len(done.stderr.splitlines()) == 1


# --- per-token columns ----------------------------------------------------------------------------------------------


def padded(pad: float = 0.0, width: int = 70) -> dict[str, Any]:
    """Arrays (rows, tokens) as trainers hold them, and the mask."""
    mask = np.arange(width) < np.array(SIZES)[:, None]
    arrays: dict[str, Any] = {"mask": mask.astype(int), "advantage": TOKENS["advantage"].to_numpy()}
    for name in ("logprobs", "old_logprobs"):
        arrays[name] = np.full((len(SIZES), width), pad)
        arrays[name][mask] = TOKENS[name].explode().to_numpy()
    return arrays


@pytest.mark.parametrize(("name", "kind"), [("mask", pl.Int64), ("response_mask", pl.Boolean), ("mine", pl.Float32)])
def test_masks(name: str, kind: Any) -> None:
    arrays = padded(-7.0)
    table = pl.DataFrame(arrays).with_columns(pl.col("mask").arr.to_list().cast(pl.List(kind))).rename({"mask": name})
    assert figures(fspo.audit(table, columns={"mask": name} if name == "mine" else {})) == EXPECTED_TOKENS


def test_arrays_of_one_size(tmp_path: Path) -> None:
    arrays = padded() | {"advantage": np.repeat(TOKENS["advantage"].to_numpy()[:, None], 70, 1)}
    assert figures(fspo.audit(arrays)) == EXPECTED_TOKENS
    columns = {name: pa.FixedSizeListArray.from_arrays(pa.array(v.ravel()), 70) for name, v in arrays.items()}
    pq.write_table(pa.table(columns), tmp_path / "a[0].parquet")
    assert figures(fspo.audit(tmp_path / "a[0].parquet")) == EXPECTED_TOKENS


def test_a_mask_may_leave_out_tokens_in_the_middle() -> None:
    """As of a tool's answer between two of the model's."""
    inserted = [
        pl.concat_list(pl.col(c).list.head(1), pl.lit([9.0]), pl.col(c).list.tail(-1 + pl.col(c).list.len()))
        for c in ("logprobs", "old_logprobs")
    ]
    mask = [[1, 0] + [1] * (k - 1) for k in SIZES]
    assert figures(fspo.audit(TOKENS.with_columns(inserted).with_columns(loss_mask=pl.Series(mask)))) == EXPECTED_TOKENS


def test_a_mask_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"row 1, column 'mask' holds 2 numbers where the log-probs are"):
        fspo.audit(TOKENS.with_columns(mask=pl.lit([1, 1])))
    with pytest.raises(ValueError, match="has only empty answers"):
        fspo.audit(TOKENS.with_columns(mask=pl.Series([[0] * k for k in SIZES])))


@pytest.mark.parametrize("pad", [0.0, 1.0, -100.0])
def test_padding_without_a_mask_is_refused(pad: float) -> None:
    arrays = padded(pad)
    del arrays["mask"]
    with pytest.raises(ValueError, match="column 'logprobs' ends in equal values, which look like padding"):
        fspo.audit(arrays)


def test_certain_tokens_are_no_padding() -> None:
    """A template that the model has learnt gives every answer the same certain start, and an end of probability 1."""
    pair = ("logprobs", "old_logprobs")
    certain = {name: [[0.0] * 3 + row + [0.0] for row in TOKENS[name].to_list()] for name in pair}
    assert fspo.audit(TOKENS.with_columns(pl.Series(name, rows) for name, rows in certain.items())).rows == 400


def test_advantages_per_token() -> None:
    ramps = [list(a + 0.01 * (np.arange(k) - k / 2)) for a, k in zip(TOKENS["advantage"], SIZES, strict=True)]
    means = TOKENS.with_columns(advantage=pl.Series([float(np.mean(row)) for row in ramps]))
    audit = fspo.audit(TOKENS.drop("advantage").with_columns(advantages=pl.Series(ramps)))
    assert figures(audit) == figures(fspo.audit(means))
    with pytest.raises(ValueError, match="column 'advantages' holds 2 numbers where the log-probs are"):
        fspo.audit(TOKENS.drop("advantage").with_columns(advantages=pl.lit([1.0, 2.0])))


def test_extreme_values() -> None:
    assert fspo.audit(FRAME.with_columns(pl.col("log_ratio") * 1e6)).fixed is None  # its range would be infinite
    flat = fspo.audit(FRAME.with_columns(log_ratio=-0.01 * pl.col("length")), clip_rate=0.1)
    assert (flat.law, flat.recommendation) == (None, None)
    assert any("S is exactly mu L everywhere" in note for note in flat.notes)
